from ._report import Report as Report
