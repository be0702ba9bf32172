"""What follows from the pieces of a study: its claims judged, its tables and its pictures."""

import io
import json
from dataclasses import asdict, replace
from typing import Any

from tether_studies.judges import UNJUDGED
from tether_studies.study import Claim, Results, Study

__all__ = ["DECIDES_NOTHING", "concluded", "drawn", "judged"]

DECIDES_NOTHING = "a quick run decides nothing"


def judged(study: Study, config: Any, scale: str, results: Results) -> list[Claim]:
    """The claims beside what was found; those of a quick run are not judged."""
    claims = list(study.claims(results, config))
    if scale != "quick":
        return claims
    return [replace(claim, verdict=UNJUDGED, evidence=DECIDES_NOTHING, provisional=False) for claim in claims]


def concluded(study: Study, config: Any, scale: str, results: Results) -> dict[str, Any]:
    """What a result says, but for who made it, when and with what."""
    record = {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "notes": study.notes,
        "scale": scale,
        "config": asdict(config),
        "changes": study.changed(scale, config),
        "claims": [asdict(claim) for claim in judged(study, config, scale, results)],
        "tables": [asdict(table) for table in study.tables(results, config)],
    }
    plain: dict[str, Any] = json.loads(json.dumps(record, ensure_ascii=False, default=float))
    return plain


def drawn(study: Study, config: Any, results: Results) -> dict[str, bytes]:
    """The pictures as PNG, by the names of their files."""
    pictures = {}
    for name, figure in study.draw(results, config).items():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
        pictures[f"{name}.png"] = file.getvalue()
    if pictures:
        import matplotlib.pyplot as plt

        plt.close("all")
    return pictures
