"""What the studies found: as one HTML file, as small files to commit, and as tables of the README."""

from tether_studies.report.page import html
from tether_studies.report.publish import publish
from tether_studies.report.results import results, scale_of
from tether_studies.report.tables import every_claim, update_readme

__all__ = ["every_claim", "html", "publish", "results", "scale_of", "update_readme"]
