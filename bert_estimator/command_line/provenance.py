"""Sources of the values of flags: the command line, a default, or a recipe and its own source.

config.json keeps it as text, `str(source)`, which `Source.parse` reads back:

    flag
    default
    embedded default
    lamb_76min: paper
    lamb_76min: assumed, scaled from 65536
    lamb_76min: scaled
    lamb_76min: stage 1
"""

import dataclasses
import enum
import re


class Origin(enum.Enum):
    """Says who gives a value. config.json has these texts."""

    FLAG = "flag"
    DEFAULT = "default"
    EMBEDDED = "embedded default"  # the plan of a script that is given no data
    PAPER = "paper"  # You et al. (2020)
    ASSUMED = "assumed"  # by this project, since the paper leaves the value open
    NVIDIA = "NVIDIA"  # DeepLearningExamples, PyTorch/LanguageModeling/BERT
    GOOGLE = "google-research/bert"
    BERT_PAPER = "BERT paper"  # Devlin et al. (2018)
    SCALED = "scaled"  # --scale
    STAGE = "stage"  # the stage of the recipe that ran before


@dataclasses.dataclass(frozen=True)
class Source:
    """Says where a value came from.

    Attributes:
      origin: who gives the value.
      recipe: name of the recipe that the value belongs to, or None.
      stage: if the origin is `Origin.STAGE`, the number of that stage.
      scaled_from: the recipe's own value, if --scale made another of it; its first six digits.
    """

    origin: Origin
    recipe: str | None = None
    stage: int | None = None
    scaled_from: float | None = None

    def __str__(self) -> str:
        text = self.origin.value if self.recipe is None else f"{self.recipe}: {self.origin.value}"
        if self.stage is not None:
            text += f" {self.stage}"
        if self.scaled_from is not None:
            text += f", scaled from {self.scaled_from:.6g}"
        return text

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Returns the source whose text this is.

        Raises:
          ValueError: the text is not the text of a source.
        """
        origins = "|".join(re.escape(origin.value) for origin in Origin)
        found = re.fullmatch(
            rf"(?:(\w+): )?({origins})(?: (\d+))?(?:, scaled from ([\d.e+-]+))?", text
        )
        if found is None:
            raise ValueError(f"{text!r} does not say where a value came from")
        recipe, origin, stage, scaled_from = found.groups()
        return cls(
            Origin(origin),
            recipe,
            None if stage is None else int(stage),
            None if scaled_from is None else float(scaled_from),
        )


FLAG = Source(Origin.FLAG)
DEFAULT = Source(Origin.DEFAULT)
EMBEDDED = Source(Origin.EMBEDDED)
