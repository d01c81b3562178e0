from .report import Report as Report
from .report import read_report as read_report
