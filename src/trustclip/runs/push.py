"""What goes to the Hugging Face hub of a finished run, and its way there."""

from collections.abc import Mapping
from pathlib import Path

from trustclip.runs.card import write_card
from trustclip.support.inside import refuse_links
from trustclip.support.jsonl import read_mapping
from trustclip.support.secrets import redact

#: Files of text, in which a secret could stand; a tokenizer's vocabulary is the base model's.
_TEXT = {".json", ".md", ".html", ".jinja", ".txt", ".yaml"}
_VOCABULARY = {"tokenizer.json", "vocab.json", "vocab.txt", "merges.txt"}


def to_push(run: Path, repo: str, page: Path | None = None) -> dict[str, Path]:
    """The files that a repository ``owner/name`` of the hub gets, by their names in it.

    They are all of a finished run's ``final/``, with its card, and a page of the run where given.
    """
    from huggingface_hub.utils import validate_repo_id

    if repo.count("/") != 1:
        raise ValueError(f"{repo!r} is no repository: give its owner, too, as in owner/{run.name}.")
    validate_repo_id(repo)
    final = run / "final"
    if not any(final.glob("*.safetensors")):
        where = f"trustclip resume {run}" if (run / "config.yaml").is_file() else "name its folder"
        raise ValueError(f"{final} holds no model: the run is not finished ({where}).")
    refuse_links(run)
    if not (final / "README.md").is_file():
        write_card(run)
    paths = sorted(path for path in final.rglob("*") if path.is_file() and path.name[0] != ".")
    files = {path.relative_to(final).as_posix(): path for path in paths}
    for path in paths:  # the page is written without secrets
        _refuse_secrets(path)
        if path.name == "adapter_config.json":
            _refuse_local_base(path)
    return files | ({page.name: page} if page else {})


def _refuse_secrets(path: Path) -> None:
    if path.suffix not in _TEXT or path.name in _VOCABULARY:
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    pairs = zip(text.splitlines(), redact(text).splitlines(), strict=False)
    for number, (line, clean) in enumerate(pairs, start=1):
        if line != clean:
            raise ValueError(
                f"line {number} of {path} holds what looks like a token, key or password: take it "
                "out, and withdraw it if anybody else has this file."
            )


def _refuse_local_base(path: Path) -> None:
    base = str(read_mapping(path).get("base_model_name_or_path") or "")
    if not base or Path(base).exists() or base.count("/") > 1:
        raise ValueError(
            f"{path} names its base model by a folder of this machine, {base!r}, where nobody else "
            "finds it: write the model's hub id there (base_model_name_or_path)."
        )


def push(files: Mapping[str, Path], repo: str, *, public: bool) -> str:
    """Commit files to a repository of the hub, all at once or none; returns the commit's address.

    The repository is created if there is none.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise ValueError(
            "no token of the hub: log in with `hf auth login`, or set HF_TOKEN to one that may "
            "write."
        )
    api = HfApi(library_name="trustclip")
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        is_public = not api.model_info(repo).private
        if not is_public or public:
            operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
            message = "Model and card of a run of trustclip"
            return str(api.create_commit(repo, operations, commit_message=message).commit_url)
    except Exception as error:  # of the hub's client and of what it connects with
        text = redact(" ".join(str(error).split())[:300])
        raise ValueError(f"nothing was pushed to {repo}: {text or type(error).__name__}") from error
    raise ValueError(f"nothing was pushed: {repo} is public already; give --public to add to it.")
