"""Which operations a model or a script really runs, and which of them have the same bits everywhere."""

from repkernels.audit.model import audit
from repkernels.audit.report import Report, Row

__all__ = ["Report", "Row", "audit"]
