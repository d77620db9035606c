"""The model that docs/architecture.md and programs.md follow through all levels, and what Piper makes of it.

    python docs/walkthrough.py DIR       # write the IR of every phase, and the programs, to DIR
    python docs/walkthrough.py --pages   # cut the excerpts of the pages in docs/ anew

An excerpt stands behind a comment that says how it is cut: a file that the first command writes, or
one of test/dialect, then a regular expression per line, each looked for behind the line before;
`to RE` takes all lines up to a match.
"""

# ruff: noqa: D101, D102, D103, D107  (the page is the documentation)

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(ROOT / "docs" / f"{page}.md" for page in ("architecture", "programs", "dialect"))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return x + F.relu(self.fc(x)) * keep


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).unsqueeze(-1).to(torch.float32)
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x, keep)
        logits: Tensor = self.head(x)
        return logits


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def make_strategy() -> piper.Strategy:
    return piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"embed": "embed", "layers.*": "layer", "head": "head"}),
            piper.split(microbatches=2),
            piper.place(stages=[2, 2]),
            piper.replicate(axis="dp"),
            piper.order("1F1B"),
            piper.update(sgd, clip=1.0),
        ],
    )


def make_batch() -> dict[str, Tensor]:
    """16 x 8 tokens: 2 ranks of dp, 2 microbatches, so that one of each is 4 x 8."""
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(32, (2, 16, 8), generator=generator)
    return {"ids": ids, "labels": labels}


# What piper.compile runs, cut where the phases of the IR end.
PHASES = {
    "recorded": "piper-record",
    "bucketed": "piper-assign-kinds,piper-form-buckets,piper-split-backward",
    "unrolled": "piper-unroll-microbatches",
    "connected": "piper-insert-transfers",
    "reduced": "piper-insert-reductions",
    "ordered": "piper-order-cells,piper-verify",
    "lowered": "piper-lower",
}


def outputs() -> dict[str, str]:
    """The texts by file name: the IR of each phase without locations, and the artifact's Python."""
    program = piper.compile(Model(), loss_fn, make_strategy(), make_batch())
    texts = {"strategy.mlir": _plain(str(make_strategy()))}
    with ir.Context():
        module = ir.Module.parse(program.texts["ir/chunks.mlir"])
        texts["captured.mlir"] = _plain(program.texts["ir/step.mlir"])
        texts["outlined.mlir"] = str(module)
        for name, passes in PHASES.items():
            PassManager.parse(f"builtin.module({passes})").run(module.operation)
            texts[f"{name}.mlir"] = str(module)
        texts["locations.mlir"] = module.operation.get_asm(enable_debug_info=True)
    texts |= {name: text for name, text in program.texts.items() if name.endswith(".py")}
    return {name: text.replace(f"{ROOT}/", "") for name, text in texts.items()}


def sources() -> dict[str, str]:
    """What excerpts are cut from: `outputs`, and the IR that is written by hand."""
    by_hand = (ROOT / "test" / "dialect").glob("*.mlir")
    return outputs() | {f"test/dialect/{path.name}": path.read_text() for path in by_hand}


def _plain(text: str) -> str:
    """IR without locations."""
    with ir.Context():
        return str(ir.Module.parse(text))


_EXCERPT = re.compile(r"<!-- cut: (\S+)\n(.*?)-->\n```(\w+)\n.*?```\n", re.DOTALL)


def cut(page: str, texts: dict[str, str]) -> str:
    """The page with every excerpt cut anew."""

    def replace(match: re.Match[str]) -> str:
        name, patterns, language = match.groups()
        lines = "\n".join(_excerpt(name, texts[name].splitlines(), patterns.splitlines()))
        return f"<!-- cut: {name}\n{patterns}-->\n```{language}\n{lines}\n```\n"

    return _EXCERPT.sub(replace, page)


def _excerpt(name: str, lines: list[str], patterns: list[str]) -> Iterator[str]:
    end = 0  # behind the last line taken
    for number, pattern in enumerate(patterns):
        through = pattern.startswith("to ")
        wanted = re.compile(pattern.removeprefix("to "))
        found = next((i for i in range(end, len(lines)) if wanted.search(lines[i])), None)
        if found is None:
            raise ValueError(f"{name}: expected a line {pattern!r} behind line {end}, got none")
        if through:
            yield from lines[end:found]
        elif number and found > end:
            yield f"{margin(lines[found])}{'#' if name.endswith('.py') else '//'} ..."
        yield lines[found]
        end = found + 1


def margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit((__doc__ or "").strip())
    if arguments == ["--pages"]:
        texts = sources()
        for page in PAGES:
            page.write_text(cut(page.read_text(), texts))
        return
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in outputs().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    import walkthrough  # by name, as whoever runs a program imports the optimizer

    walkthrough.main(sys.argv[1:])
