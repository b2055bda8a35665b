"""`python -I -m turnkeeper.sandboxd --listen-fd N --config-fd M`."""

import importlib
import sys

_USAGE = "usage: python -I -m turnkeeper.sandboxd --listen-fd N --config-fd M"


def main(arguments: list[str]) -> int:
    """Read the two numbers (argparse would cost 10 ms before the first answer) and serve."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    numbers = dict(zip(words[::2], words[1::2], strict=False))
    if set(numbers) != {"--listen-fd", "--config-fd"} or not all(text.isdecimal() for text in numbers.values()):
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    # asyncio imports ssl where it can, and 12 ms would pass before the first answer. The token library does it later.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    importlib.import_module("asyncio")
    del sys.modules["ssl"]
    from turnkeeper.sandboxd.boot import run

    return run(int(numbers["--listen-fd"]), int(numbers["--config-fd"]))


sys.exit(main(sys.argv[1:]))
