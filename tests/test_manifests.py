"""The Kubernetes manifests as kubectl renders them: confined pods, pinned images, secrets by reference only."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar.config import Endpoint
from iar.methods.job_spec import TaskSettings, training_job
from iar.services.run_files import load_run_file
from tests.crd_schemas import check, needs_crds, schemas

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
OVERLAYS = ("dev", "a100")
# Kinds that belong to no namespace; the server refuses one that names any.
OF_THE_CLUSTER = ("Namespace", "PriorityClass", "ClusterQueue", "ResourceFlavor", "WorkloadPriorityClass")
SECRET_NAME = re.compile(r"password|secret|token|api_?key", re.IGNORECASE)

RIGHTS = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")

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
    assert len(found) == {"dev": 3, "a100": 7}[overlay]
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
    place = MANIFESTS / "components" / "images" / "kustomization.yaml"
    images = yaml.safe_load(place.read_text())["images"]
    known = {f"{image['newName']}:{image['newTag']}" for image in images}
    used = {container["image"] for _, _, container in containers(overlay)}
    assert used == (known if overlay == "a100" else {image for image in known if "eval" not in image})
    assert not [image for image in used if image.endswith(":latest") or ":" not in image.rpartition("/")[2]]
    others = [path for path in MANIFESTS.rglob("*.yaml") if path != place]
    names = {image["newName"] for image in images}
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
    inside = [resource for resource in render(overlay) if resource["kind"] not in OF_THE_CLUSTER]
    assert not [
        resource
        for resource in render(overlay)
        if resource["kind"] in OF_THE_CLUSTER and "namespace" in resource["metadata"]
    ]
    assert {resource["metadata"]["namespace"] for resource in inside} == {namespace["metadata"]["name"]}


@each_overlay
def test_accounts_have_few_rights_and_only_tasks_have_any(overlay: str) -> None:
    assert not of_kind(overlay, "ClusterRole") + of_kind(overlay, "ClusterRoleBinding")
    (role,) = of_kind(overlay, "Role")
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        if "secrets" in rule["resources"]:  # that of Kubeflow's object store, which its launcher reads in our pods
            assert (rule["resourceNames"], rule["verbs"]) == (["mlpipeline-minio-artifact"], ["get"])
        for resource in rule["resources"]:
            # Why each right is given stands in the table of docs/cluster.md.
            row = next(line for line in RIGHTS.splitlines() if line.startswith(f"| `{resource}` |"))
            assert [verb.strip() for verb in row.split("|")[2].split(",")] == rule["verbs"], resource
            assert len(row.split("|")[3]) > 10, resource
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
def test_what_kubeflow_runs_in_a_tasks_pod_reaches_its_servers(overlay: str) -> None:
    # Its driver and launcher: metadata, object store (SeaweedFS listens at 8333 behind the service at 9000), pipelines.
    tasks = named(overlay, "NetworkPolicy", "tasks")["spec"]
    (way,) = [rule for rule in tasks["egress"] if "namespaceSelector" in str(rule)]
    assert way["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kubeflow"}
    assert {one["port"] for one in way["ports"]} == {8080, 8333, 8887, 8888, 9000}
    # Both by Kubeflow's own manifests: who gets the secret of the object store, and who is let in.
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pipelines.kubeflow.org/enabled"] == "true"
    assert namespace["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kubeflow-profile"


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
    assert not {resource["kind"] for resource in render("dev")} & {"ClusterQueue", "PriorityClass", "ResourceQuota"}


@needs_crds
@each_overlay
def test_custom_resources_match_their_schemas(overlay: str) -> None:
    known = [one for one in render(overlay) if (one["apiVersion"], one["kind"]) in schemas()]
    assert {one["kind"] for one in known} == (
        {"ClusterQueue", "LocalQueue", "ResourceFlavor"} if overlay == "a100" else set()
    )
    for resource in known:
        check(resource)


@each_overlay
def test_what_a_scanner_looks_for_beside_confinement(overlay: str) -> None:
    for resource in render(overlay):
        template = resource.get("spec", {}).get("template")
        if not template:
            continue
        kind, name, pod = resource["kind"], resource["metadata"]["name"], template["spec"]
        excepted = " ".join(resource["metadata"].get("annotations", {}).values())
        # A number that no account of a node has.
        assert pod["securityContext"]["runAsUser"] >= 10_000 or "CKV_K8S_40=" in excepted, name
        assert pod["serviceAccountName"] != "default" and not pod.get("hostIPC") and not pod.get("hostNetwork"), name
        for container in pod["containers"]:
            assert not [port for port in container.get("ports", ()) if "hostPort" in port], name
            serves = {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
            assert serves == (kind in ("Deployment", "StatefulSet")), name
        if kind == "Job":
            assert resource["spec"]["activeDeadlineSeconds"] and "backoffLimit" in resource["spec"], name


def test_every_exception_from_the_scan_has_its_reason_where_the_scanner_reads_it() -> None:
    lines = (ROOT / ".checkov.yaml").read_text(encoding="utf-8").splitlines()
    skipped = [number for number, line in enumerate(lines) if line.strip().startswith("- CKV")]
    assert len(skipped) == len(yaml.safe_load("\n".join(lines))["skip-check"]) == 3
    for number in skipped:
        assert lines[number - 1].strip().startswith("#"), lines[number]
    for overlay in OVERLAYS:
        for resource in render(overlay):
            for key, value in resource["metadata"].get("annotations", {}).items():
                assert not key.startswith("checkov.io/") or re.fullmatch(r"CKV_K8S_\d+=.{20,}", value), value


@pytest.mark.slow
@each_overlay
def test_checkov_finds_nothing(overlay: str, tmp_path: Path) -> None:
    if not shutil.which("checkov"):
        pytest.skip("checkov is not installed; docs/security.md says how")
    (tmp_path / f"{overlay}.yaml").write_text(yaml.safe_dump_all(render(overlay)))
    command = ["checkov", "-d", tmp_path, "--config-file", ROOT / ".checkov.yaml", "--skip-download", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["summary"]
    assert (found["failed"], found["parsing_errors"], found["passed"] > 200) == (0, 0, True), done.stdout


@each_overlay
def test_resources_of_kubernetes_itself_match_its_schemas(overlay: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for resource in render(overlay):
        group = resource["apiVersion"].rpartition("/")[0]
        if "kueue" not in group:
            validate(resource, "1.30", strict=True)


def test_the_pool_hangs_together() -> None:
    pool = load_run_file(MANIFESTS / "overlays" / "a100" / "run.yaml").platform.pool
    queue = named("a100", "LocalQueue", pool.queue)
    assert queue["metadata"]["namespace"] == "iar"
    (group,) = named("a100", "ClusterQueue", queue["spec"]["clusterQueue"])["spec"]["resourceGroups"]
    assert pool.gpu in group["coveredResources"]
    (flavor,) = group["flavors"]
    assert named("a100", "ResourceFlavor", flavor["name"])["spec"]["nodeLabels"] == pool.node_selector
    priorities = {one["metadata"]["name"]: one["value"] for one in of_kind("a100", "PriorityClass")}
    assert priorities["iar-serving"] > priorities[pool.priority_class]
    assert named("a100", "WorkloadPriorityClass", pool.priority_class)
    quota = named("a100", "ResourceQuota", "iar")["spec"]["hard"]
    gpus = next(one["nominalQuota"] for one in flavor["resources"] if one["name"] == pool.gpu)
    assert int(quota[f"requests.{pool.gpu}"]) >= int(gpus) + 4
    assert named("a100", "LimitRange", "iar")


@pytest.mark.parametrize("scratch_gb", [0, 1300])
def test_the_queue_covers_all_that_a_job_asks_for(scratch_gb: int) -> None:
    # Kueue admits no job that asks for anything which its queue does not name: it waits, and says so only in the queue.
    platform = load_run_file(MANIFESTS / "overlays" / "a100" / "run.yaml").platform
    manifest = training_job("/state/work/inject-0", ["python"], platform, TaskSettings(), scratch_gb).manifest()
    (container,) = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    (group,) = named("a100", "ClusterQueue", "iar-a100")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert set(container["resources"]["requests"]) <= set(group["coveredResources"])
    assert ("ephemeral-storage" in container["resources"]["requests"]) == bool(scratch_gb)
    assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]


def test_judges_and_teacher_are_those_of_the_run_file() -> None:
    run_file = load_run_file(MANIFESTS / "overlays" / "a100" / "run.yaml")
    asked = [
        server for server in (run_file.qa_build.teacher, *run_file.evaluate.judges) if isinstance(server, Endpoint)
    ]
    assert len(asked) == 4
    for server in asked:
        assert server.base_url == f"http://{server.name}:8000/v1"
        (deployment, service) = (named("a100", kind, server.name) for kind in ("Deployment", "Service"))
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert labels["app.kubernetes.io/name"] == server.model
        budget = named("a100", "PodDisruptionBudget", server.name)["spec"]
        assert budget["selector"]["matchLabels"].items() <= labels.items() and budget["maxUnavailable"] == 1
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
        others = [one for one in of_kind("a100", "Service") if one["metadata"]["name"] != server.name]
        assert not [one for one in others if one["spec"]["selector"].items() <= labels.items()]


@each_overlay
def test_pods_of_a_training_reach_each_other_and_nobody_else(overlay: str) -> None:
    ours = {"app.kubernetes.io/name": "iar-train"}
    policy = named(overlay, "NetworkPolicy", "training")["spec"]
    assert policy["podSelector"] == {"matchLabels": ours}
    assert policy["ingress"][0]["from"] == policy["egress"][0]["to"] == [{"podSelector": {"matchLabels": ours}}]
    assert "iar-train" in str(named(overlay, "NetworkPolicy", "tasks")["spec"]["podSelector"])


def test_artifacts_in_s3_take_their_credentials_from_a_secret(tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    overlay = tmp_path / "manifests" / "overlays" / "dev"
    place = overlay / "kustomization.yaml"
    place.write_text(place.read_text().replace("components:\n", "components:\n  - ../../components/s3\n"))
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    items = list(yaml.safe_load_all(done.stdout))
    (mlflow,) = [item for item in items if item["kind"] == "Deployment"]
    (doctor,) = [item for item in items if item["metadata"]["name"] == "iar-doctor"]
    (container,) = mlflow["spec"]["template"]["spec"]["containers"]
    assert "--artifacts-destination=s3://iar-mlflow" in container["args"]
    for pod, endpoint in ((mlflow, "MLFLOW_S3_ENDPOINT_URL"), (doctor, "AWS_ENDPOINT_URL")):
        env = {one["name"]: one for one in pod["spec"]["template"]["spec"]["containers"][0]["env"]}
        for name, key in (("AWS_ACCESS_KEY_ID", "access-key"), ("AWS_SECRET_ACCESS_KEY", "secret-key")):
            assert env[name]["valueFrom"] == {"secretKeyRef": {"name": "iar-s3", "key": key}}
        assert env[endpoint]["valueFrom"] == {"secretKeyRef": {"name": "iar-s3", "key": "endpoint", "optional": True}}
    opened = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "NetworkPolicy"}
    for name in ("mlflow-to-s3", "runs-to-s3"):
        assert opened[name]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 443}]


@each_overlay
def test_a_database_elsewhere_takes_the_place_of_the_one_here(overlay: str, tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    place = tmp_path / "manifests" / "overlays" / overlay / "kustomization.yaml"
    place.write_text(
        place.read_text().replace("components:\n", "components:\n  - ../../components/external-postgres\n")
    )
    done = subprocess.run(["kubectl", "kustomize", place.parent], capture_output=True, text=True, check=True)
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    before = {(one["kind"], one["metadata"]["name"]) for one in render(overlay)}
    gone = {kind for kind, _ in before - found.keys()}
    assert gone == {"StatefulSet", "NetworkPolicy", "ConfigMap"}
    assert set(found) - before == {("NetworkPolicy", "external-postgres")}
    # Run file and MLflow keep the name, which is now an alias.
    assert found["Service", "postgres"]["spec"] == {"type": "ExternalName", "externalName": "postgres.example.com"}
    policy = found["NetworkPolicy", "external-postgres"]["spec"]
    assert policy["egress"][0]["ports"] == [{"protocol": "TCP", "port": 5432}]
    assert "iar-train" in str(policy["podSelector"]) and "llm-server" in str(policy["podSelector"])
    validate = pytest.importorskip("kubernetes_validate").validate
    for key in (("Service", "postgres"), ("NetworkPolicy", "external-postgres")):
        validate(found[key], "1.30", strict=True)


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
    place = overlay / "kustomization.yaml"
    place.write_text(place.read_text().replace("components:\n", "components:\n  - ../../components/llm-egress\n"))
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    policies = [item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "NetworkPolicy"]
    (opened,) = [item for item in policies if item["metadata"]["name"] == "llm-servers"]
    assert opened["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 443}]


def test_the_registry_is_read_behind_a_token_by_a_confined_pod_that_reaches_the_database_alone(tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    overlay = tmp_path / "manifests" / "overlays" / "dev"
    place = overlay / "kustomization.yaml"
    place.write_text(place.read_text().replace("components:\n", "components:\n  - ../../components/registry-api\n"))
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    pod = found["Deployment", "registry-api"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][:2] == ["registry", "serve"] and "--no-auth" not in container["args"]
    names = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"]}
    assert names["IAR_API_TOKEN"] == {"name": "iar-registry-api", "key": "token"}
    assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["image"] != "iar-data"
    policy = found["NetworkPolicy", "registry-api"]["spec"]
    (way,) = policy["egress"]
    assert way["to"][0]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "postgres"}
    tasks = found["NetworkPolicy", "tasks"]["spec"]["podSelector"]["matchExpressions"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] in tasks[1]["values"]


@cache
def gitops(overlay: str) -> list[Resource]:
    """An overlay with reconciliation, as docs/gitops.md says."""
    page = (ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"^ {4}components:\n(?:^ {4,}.*\n)+", page, re.MULTILINE)
    added = yaml.safe_load(said)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "manifests" / "overlays" / overlay
        shutil.copytree(MANIFESTS, Path(root) / "manifests")
        (folder / "runs").mkdir()
        place = folder / "kustomization.yaml"
        whole = yaml.safe_load(place.read_text())
        for generator in added["configMapGenerator"]:
            for file in generator["files"]:
                shutil.copy(folder / "run.yaml", folder / file)
        # Those of the page last, as it says; pool and others stay before them.
        others = [one for one in whole["components"] if one not in added["components"]]
        whole |= {"components": [*others, *added["components"]]}
        whole["configMapGenerator"] += added["configMapGenerator"]
        place.write_text(yaml.safe_dump(whole))
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def job_of(overlay: str, name: str) -> Resource:
    return next(one for one in gitops(overlay) if (one["kind"], one["metadata"]["name"]) == ("Job", name))


@each_overlay
def test_with_reconciliation_every_resource_has_its_namespace_and_the_clusters_have_none(overlay: str) -> None:
    assert {"iar-reconcile", "iar-doctor"} <= {one["metadata"]["name"] for one in gitops(overlay)}
    for one in gitops(overlay):
        wanted = None if one["kind"] in OF_THE_CLUSTER else "iar"
        assert one["metadata"].get("namespace") == wanted, (one["kind"], one["metadata"]["name"])
        for subject in one.get("subjects", ()):
            assert subject["namespace"] == "iar", one["metadata"]["name"]


@each_overlay
def test_argo_cd_makes_every_job_anew_and_starts_runs_after_the_preflight(overlay: str) -> None:
    hooks = {one["metadata"]["name"]: one["metadata"]["annotations"] for one in gitops(overlay) if one["kind"] == "Job"}
    # A job's pod cannot be changed, and one that its TTL removed would be healed into another.
    assert {name: about["argocd.argoproj.io/hook"] for name, about in hooks.items()} == {
        "iar-doctor": "Sync",
        "iar-reconcile": "PostSync",
    }
    for name, about in hooks.items():
        assert about["argocd.argoproj.io/hook-delete-policy"] == "BeforeHookCreation", name
    # In dev no other pod mounts the state volume: its claim may wait for this one, and a later wave for the claim.
    assert "argocd.argoproj.io/sync-wave" not in hooks["iar-doctor"]


@each_overlay
def test_after_a_sync_a_confined_job_reconciles_the_run_files(overlay: str) -> None:
    pod = job_of(overlay, "iar-reconcile")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == job_of(overlay, "iar-doctor")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert container["args"][:2] == ["reconcile", "/run-files"]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (token,) = volumes["kubeflow-token"]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "pipelines.kubeflow.org"
    env = {one["name"]: one for one in container["env"]}
    # Without it, and without an account's own token, kfp names no namespace, and a server of several users refuses.
    assert env["IAR_NAMESPACE"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    (files,) = [one for one in gitops(overlay) if one["metadata"]["name"] == volumes["run-files"]["configMap"]["name"]]
    assert sorted(files["data"]) == ["faq.yaml", "handbook.yaml"] and files["metadata"]["name"].startswith(
        "iar-run-files-"
    )


def test_the_command_of_the_reconciliation_job_exists() -> None:
    import typer

    from iar.cli import app

    name, _, *options = job_of("dev", "iar-reconcile")["spec"]["template"]["spec"]["containers"][0]["args"]
    command: Any = typer.main.get_command(app)
    known = {option for parameter in command.commands[name].params for option in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= known


@needs_crds
def test_the_argo_cd_application_fits_its_definition() -> None:
    application = yaml.safe_load((MANIFESTS / "argocd" / "application.yaml").read_text())
    check(application)
    assert (MANIFESTS.parent / application["spec"]["source"]["path"] / "kustomization.yaml").is_file()
