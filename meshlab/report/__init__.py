"""One run, or any results, as a document for someone else."""

from meshlab.report.report import Report, read_report

__all__ = ["Report", "read_report"]
