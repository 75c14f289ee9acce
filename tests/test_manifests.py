"""The Kubernetes manifests as kubectl renders them: confined pods, pinned images, secrets by reference only."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.crds import CRDS, validate_resource

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
OVERLAYS = ("dev", "a100")
SECRET_NAME = re.compile(r"password|secret|token|api_?key", re.IGNORECASE)

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)

Resource = dict[str, Any]


@cache
def render(overlay: str) -> list[Resource]:
    folder = MANIFESTS / "overlays" / overlay
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # kubectl only warns of what it will not support for long.
    assert not done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> list[Resource]:
    return [resource for resource in render(overlay) if resource["kind"] == kind]


def named(overlay: str, kind: str, name: str) -> Resource:
    return next(resource for resource in of_kind(overlay, kind) if resource["metadata"]["name"] == name)


def pods(overlay: str) -> Iterator[tuple[str, Resource]]:
    for resource in render(overlay):
        template = resource.get("spec", {}).get("template")
        if template:
            yield f"{resource['kind']} {resource['metadata']['name']}", template


def containers(overlay: str) -> Iterator[tuple[str, Resource, Resource]]:
    """Yield (name, pod spec, container) of every container, those that start first included."""
    for name, template in pods(overlay):
        spec = template["spec"]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            yield f"{name} {container['name']}", spec, container


def words(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every (key, plain value) below a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from words(inner) if isinstance(inner, dict | list) else [(key, inner)]
    elif isinstance(value, list):
        for inner in value:
            yield from words(inner) if isinstance(inner, dict | list) else [("", inner)]


@each_overlay
def test_every_container_is_confined(overlay: str) -> None:
    found = list(containers(overlay))
    assert len(found) == 3
    for name, pod, container in found:
        for key, wanted in (("runAsNonRoot", True), ("seccompProfile", {"type": "RuntimeDefault"})):
            assert pod["securityContext"][key] == wanted, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True, name
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert own.get("runAsNonRoot", True) and own.get("runAsUser", 1) and not own.get("privileged"), name
        assert not pod.get("hostNetwork") and not pod.get("hostPID"), name
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume], name


@each_overlay
def test_every_container_has_a_place_to_write_and_resources(overlay: str) -> None:
    for name, pod, container in containers(overlay):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert "/tmp" in mounts, name
        assert set(mounts.values()) <= {volume["name"] for volume in pod["volumes"]} | {"data"}, name
        resources = container["resources"]
        for part in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(resources[part]), name


@each_overlay
def test_images_are_pinned_and_named_in_one_place(overlay: str) -> None:
    base = yaml.safe_load((MANIFESTS / "base" / "kustomization.yaml").read_text())
    known = {f"{image['newName']}:{image['newTag']}" for image in base["images"]}
    used = {container["image"] for _, _, container in containers(overlay)}
    assert used == known
    assert not [image for image in used if image.endswith(":latest") or ":" not in image.rpartition("/")[2]]
    others = [path for path in MANIFESTS.rglob("*.yaml") if path != MANIFESTS / "base" / "kustomization.yaml"]
    names = {image["newName"] for image in base["images"]}
    assert not [path for path in others for name in names if name in path.read_text(encoding="utf-8")]


@each_overlay
def test_secrets_stand_in_no_manifest(overlay: str) -> None:
    assert not of_kind(overlay, "Secret")
    for name, _, container in containers(overlay):
        for variable in container.get("env", ()):
            if SECRET_NAME.search(variable["name"]):
                assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}, name
                assert "value" not in variable, name
    for resource in render(overlay):
        for key, value in words(resource):
            assert not re.search(r"://[^/@\s]*:[^@\s]*@", str(value)), (resource["metadata"]["name"], key)


@each_overlay
def test_the_namespace_admits_only_restricted_pods_and_holds_everything(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    inside = [resource for resource in render(overlay) if resource["kind"] != "Namespace"]
    assert {resource["metadata"]["namespace"] for resource in inside} == {namespace["metadata"]["name"]}


@each_overlay
def test_accounts_have_few_rights_and_only_tasks_have_any(overlay: str) -> None:
    assert not of_kind(overlay, "ClusterRole") + of_kind(overlay, "ClusterRoleBinding")
    (role,) = of_kind(overlay, "Role")
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"]
    (binding,) = of_kind(overlay, "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["iar-pipeline"]
    for name, template in pods(overlay):
        # None of these pods calls the Kubernetes API.
        assert template["spec"]["automountServiceAccountToken"] is False, name


@each_overlay
def test_traffic_is_denied_unless_a_policy_allows_it(overlay: str) -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(overlay, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, spec in policies.items():
        for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
            assert rule["ports"], name
        # A rule without "from" would let anybody in.
        assert all(rule["from"] for rule in spec.get("ingress", ())), name


@each_overlay
def test_references_between_resources_hold(overlay: str) -> None:
    claims = {claim["metadata"]["name"] for claim in of_kind(overlay, "PersistentVolumeClaim")}
    maps = {entry["metadata"]["name"] for entry in of_kind(overlay, "ConfigMap")}
    accounts = {account["metadata"]["name"] for account in of_kind(overlay, "ServiceAccount")}
    for name, template in pods(overlay):
        spec = template["spec"]
        assert spec["serviceAccountName"] in accounts, name
        for volume in spec["volumes"]:
            assert volume.get("configMap", {}).get("name") in {None, *maps}, name
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}, name
    for service in of_kind(overlay, "Service"):
        labels = [template["metadata"]["labels"] for _, template in pods(overlay)]
        assert [found for found in labels if service["spec"]["selector"].items() <= found.items()]


@each_overlay
def test_the_run_file_of_an_overlay_is_valid_and_points_at_its_servers(overlay: str) -> None:
    from iar.services.run_files import load_run_file

    run_file = load_run_file(MANIFESTS / "overlays" / overlay / "run.yaml")
    services = {service["metadata"]["name"] for service in of_kind(overlay, "Service")}
    assert run_file.register.tracking_uri == "http://mlflow:5000"
    assert run_file.register.registry_url == "postgresql://postgres/iar"
    assert {"mlflow", "postgres"} <= services
    assert run_file.platform.backend == "kubeflow"
    assert run_file.run.state == "/state"


def test_dev_is_small_and_needs_no_gpu() -> None:
    for name, _, container in containers("dev"):
        assert "nvidia.com/gpu" not in container["resources"]["limits"], name
        assert int(container["resources"]["limits"]["cpu"]) <= 2, name
    assert named("dev", "PersistentVolumeClaim", "iar-state")["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_a100_asks_for_the_pool_and_a_larger_volume() -> None:
    pod = named("a100", "Job", "iar-doctor")["spec"]["template"]["spec"]
    assert "A100" in pod["nodeSelector"]["nvidia.com/gpu.product"]
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    claim = named("a100", "PersistentVolumeClaim", "iar-state")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["resources"]["requests"]["storage"] == "2Ti"
    assert named("dev", "PersistentVolumeClaim", "iar-state")["spec"]["resources"]["requests"]["storage"] == "20Gi"


def test_the_way_to_llm_servers_opens_only_where_it_is_asked_for(tmp_path: Path) -> None:
    assert "llm-servers" not in {policy["metadata"]["name"] for policy in of_kind("dev", "NetworkPolicy")}
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    overlay = tmp_path / "manifests" / "overlays" / "dev"
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write("components: [../../components/llm-egress]\n")
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    policies = [item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "NetworkPolicy"]
    (opened,) = [item for item in policies if item["metadata"]["name"] == "llm-servers"]
    assert opened["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 443}]


@pytest.fixture(scope="module")
def gitops(tmp_path_factory: pytest.TempPathFactory) -> list[Resource]:
    """The small overlay with reconciliation, as docs/gitops.md says."""
    root = tmp_path_factory.mktemp("gitops")
    shutil.copytree(MANIFESTS, root / "manifests")
    overlay = root / "manifests" / "overlays" / "dev"
    (overlay / "runs").mkdir()
    shutil.copy(overlay / "run.yaml", overlay / "runs" / "demo.yaml")
    text = (overlay / "kustomization.yaml").read_text()
    added = "configMapGenerator:\n  - name: iar-run-files\n    files: [runs/demo.yaml]\n"
    text = text.replace("configMapGenerator:\n", added) + "components: [../../components/reconcile]\n"
    (overlay / "kustomization.yaml").write_text(text)
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_after_a_sync_a_confined_job_reconciles_the_run_files(gitops: list[Resource]) -> None:
    (job,) = [one for one in gitops if (one["kind"], one["metadata"]["name"]) == ("Job", "iar-reconcile")]
    annotations = job["metadata"]["annotations"]
    assert annotations["argocd.argoproj.io/hook"] == "PostSync"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == named("dev", "Job", "iar-doctor")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert container["args"][:2] == ["reconcile", "/run-files"]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (token,) = volumes["kubeflow-token"]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "pipelines.kubeflow.org"
    (files,) = [one for one in gitops if one["metadata"]["name"] == volumes["run-files"]["configMap"]["name"]]
    assert list(files["data"]) == ["demo.yaml"] and files["metadata"]["name"].startswith("iar-run-files-")


def test_the_command_of_the_reconciliation_job_exists(gitops: list[Resource], tmp_path: Path) -> None:
    import typer

    from iar.cli import app

    (job,) = [one for one in gitops if (one["kind"], one["metadata"]["name"]) == ("Job", "iar-reconcile")]
    name, _, *options = job["spec"]["template"]["spec"]["containers"][0]["args"]
    command: Any = typer.main.get_command(app)
    known = {option for parameter in command.commands[name].params for option in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= known


@pytest.mark.skipif(not CRDS.is_dir(), reason="the CustomResourceDefinitions are not beside this repository")
def test_the_argo_cd_application_fits_its_definition() -> None:
    application = yaml.safe_load((MANIFESTS / "argocd" / "application.yaml").read_text())
    validate_resource(application)
    assert (MANIFESTS.parent / application["spec"]["source"]["path"] / "kustomization.yaml").is_file()
