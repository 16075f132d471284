"""Plain text and source code: a file is a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.sources.base import BLOCK_BYTES, NOT_UTF8, Block, File, Part, ReadOptions, Record

# What a folder is searched for unless --include says otherwise.
# fmt: off
ENDINGS = (
    ".txt", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".java",
    ".kt", ".scala", ".js", ".mjs", ".jsx", ".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".pl", ".sh", ".bash",
    ".lua", ".r", ".jl", ".m", ".swift", ".cs", ".fs", ".hs", ".ml", ".clj", ".ex", ".erl", ".sql", ".html", ".css",
    ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg",
)
# fmt: on
_MOST_FILES = 500


@dataclass(frozen=True)
class TextFiles:
    """Neighbouring files that make a part with one block; they are opened where they are encoded."""

    files: tuple[File, ...]

    @property
    def name(self) -> str:
        """The first file."""
        return self.files[0].path

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def blocks(self) -> Iterator[Block]:
        """Itself."""
        yield self

    def records(self) -> Iterator[Record]:
        """A record for each file; line ends stay as they are, a leading byte order mark is no text."""
        for file in self.files:
            try:
                with open(file.path, "rb") as stream:
                    data = stream.read()
                yield Record(file.path, data.removeprefix(b"\xef\xbb\xbf").decode())
            except OSError as error:
                yield Record(file.path, "", f"cannot be read ({error.strerror})")
            except UnicodeDecodeError as error:
                line = data.count(b"\n", 0, error.start) + 1
                yield Record(f"{file.path}:{line}", "", NOT_UTF8)


def parts(files: list[File], options: ReadOptions) -> Iterator[Part]:
    """Groups of neighbouring files of about a block's size."""
    group: list[File] = []
    size = 0
    for file in files:
        if group and (size + file.size > BLOCK_BYTES or len(group) == _MOST_FILES):
            yield TextFiles(tuple(group))
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield TextFiles(tuple(group))
