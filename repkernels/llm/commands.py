"""`repkernels serve` and `repkernels replay`."""

import gc
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from repkernels.contract import NAMES
from repkernels.devices import named_device

Model = Annotated[str, typer.Argument(help="smollm2, random:tiny, random:135m, random:1.7b, random:llama-8b, or a "
                                           "directory or name that transformers loads.")]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; a GPU if there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16; the checkpoint's own if left out.")]
Blocks = Annotated[int, typer.Option(help="Pages of the cache; 0: what there is memory for.", min=0)]
BlockSize = Annotated[int, typer.Option(help="Tokens of a page.", min=1)]
BatchTokens = Annotated[int, typer.Option(help="The most tokens of a step; 0: transformers' choice.", min=0)]
Requests = Annotated[int, typer.Option(help="The most requests of a step; 0: transformers' choice.", min=0)]


def serve_command(
    model: Model,
    contract: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "fixed16",
    device: Device = "",
    dtype: Dtype = "",
    name: Annotated[str, typer.Option(help="What clients call the model; as above if left out.")] = "",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    num_blocks: Blocks = 0,
    block_size: BlockSize = 64,
    max_batch_tokens: BatchTokens = 0,
    max_requests: Requests = 0,
    cuda_graphs: Annotated[bool | None, typer.Option(help="On a GPU unless told otherwise.")] = None,
) -> None:
    """Serves a language model by OpenAI's API: a request has one answer, to the bit, whatever else is asked."""
    if contract not in NAMES:
        raise typer.BadParameter(f"--contract: expected one of {', '.join(NAMES)}, got {contract!r}")
    _needed("serve", "transformers", "fastapi", "uvicorn", "openai")
    import uvicorn

    from repkernels.llm.engine import Batching
    from repkernels.llm.server import application

    console = Console(stderr=True)
    batching = Batching(num_blocks or None, block_size, max_batch_tokens or None, max_requests or None, cuda_graphs)
    engine = _engine(model, name or model, dtype, device, contract, batching)
    console.print(f"{engine.name}: {engine.fingerprint}", highlight=False, soft_wrap=True)
    try:
        engine.start()
        # What is here now stays: no collection needs to look at it again.
        gc.freeze()
        uvicorn.run(application(engine), host=host, port=port, log_level="info", access_log=False)
    finally:
        engine.stop()


def replay_command(
    file: Annotated[Path, typer.Argument(help='A response to {"repkernels": {"digest": true}}, as JSON.')],
    device: Device = "",
    model: Annotated[str, typer.Option(help="The model, where it is not called here as it was there.")] = "",
    server: Annotated[str, typer.Option(metavar="URL", help="Let this server answer instead of this machine.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the new record here.")] = None,
) -> None:
    """Makes a recorded answer again and compares every token and the digests of every token's logits.

    Exit code 1 where a bit differs; 2 where the weights, the contract or the rules are not those of the record.
    """
    from repkernels.llm import replay

    recorded = _record(file)
    console = Console()
    try:
        if server:
            found = replay.asked(recorded, server, model)
        else:
            _needed("replay", "transformers")
            from repkernels.llm.engine import Batching

            of = recorded["fingerprint"]
            name = model or recorded["model"]
            engine = _engine(name, recorded["model"], recorded["dtype"], device, of["contract"], Batching())
            found = replay.made(recorded, engine)
    except replay.NotComparable as error:
        console.print(str(error), style="bold red", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(2) from None
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    lines = replay.differences(found, recorded)
    there, here = (of["machine"]["device"] for of in (recorded, found))
    console.print(f"recorded on {there}, made again on {here}", highlight=False, soft_wrap=True, markup=False)
    for line in lines:
        console.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
    if lines:
        raise typer.Exit(1)
    count = sum(len(answer["tokens"]) for answer in found["answers"])
    console.print(f"The same {count} tokens, and every bit of their logits", style="bold green", highlight=False)


def _engine(model: str, name: str, dtype: str, device: str, contract: str, batching: Any) -> Any:
    from repkernels.integrations.transformers import UnsupportedModel
    from repkernels.llm import models
    from repkernels.llm.engine import Engine

    where = named_device(device)
    if dtype and dtype not in models.DTYPES:
        raise typer.BadParameter(f"--dtype: expected one of {', '.join(models.DTYPES)}, got {dtype!r}")
    try:
        loaded, tokenizer = models.load(model, models.DTYPES[dtype] if dtype else None, where)
        return Engine(loaded, tokenizer, name, contract, batching)
    except (OSError, ValueError, UnsupportedModel) as error:
        raise typer.BadParameter(f"{model}: {error}") from None


def _record(file: Path) -> Any:
    from repkernels.llm.record import FORMAT

    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    recorded = found.get("repkernels", found) if isinstance(found, dict) else None
    if not isinstance(recorded, dict) or "answers" not in recorded:
        hint = 'ask with extra_body={"repkernels": {"digest": True}} and keep the whole response'
        raise typer.BadParameter(f"{file}: no record of an answer; {hint}")
    if recorded.get("format") != FORMAT:
        raise typer.BadParameter(f"{file}: a record of format {recorded.get('format')}; this version reads {FORMAT}")
    return recorded


def _needed(command: str, *packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise typer.BadParameter(f"{command} needs {', '.join(missing)}: pip install 'repkernels[serve]'")
