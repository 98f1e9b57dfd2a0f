"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as far as one machine needs them."""

import ssl
from pathlib import Path

from tests.e2e.cluster.kube import Kube, write_kubeconfig
from tests.e2e.cluster.pki import Authority
from tests.e2e.cluster.probes import answers
from tests.e2e.cluster.processes import Processes
from tests.ports import free_ports

from gotools import find

SERVICE_CIDR, POD_CIDR = "10.96.0.0/16", "10.244.0.0/16"
KUBERNETES_SERVICE_IP = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"
_TOKEN_LIFE = "24h"
USER_GROUP = "opd-users"  # what manifests/cluster binds its Role to


class ControlPlane:
    """A control plane in a folder; every start takes a new authority and an empty etcd."""

    def __init__(self, folder: Path, processes: Processes, *, address: str = "127.0.0.1") -> None:
        """`address` is where the API server listens, an IP of this machine; etcd listens on loopback only."""
        self.folder, self.processes, self.address = folder, processes, address
        etcd, self._etcd_peer, self._api = free_ports(3, address=address)
        self._etcd = f"http://127.0.0.1:{etcd}"
        self.server = f"https://{address}:{self._api}"
        self.authority = Authority(folder / "pki")
        self._token_keys = self.authority.signing_keys("service-accounts")
        self.admin = Kube(kubeconfig=self.kubeconfig("admin", groups=["system:masters"]))

    def kubeconfig(self, user: str, *, groups: list[str], namespace: str = "default", name: str = "") -> Path:
        """A kubeconfig with a fresh client certificate for a user in groups."""
        name = name or user.replace(":", "-")
        identity = self.authority.issue(name, user=user, groups=groups)
        path = self.folder / f"{name}.kubeconfig"
        return write_kubeconfig(
            path, server=self.server, authority=self.authority.certificate, identity=identity, namespace=namespace
        )

    def account_kubeconfig(self, account: str, *, namespace: str) -> Path:
        """A kubeconfig of a service account that is there."""
        token = self.admin.run("create", "token", account, "-n", namespace, f"--duration={_TOKEN_LIFE}").strip()
        path = self.folder / f"{account}.kubeconfig"
        return write_kubeconfig(path, server=self.server, authority=self.authority.certificate, token=token)

    def user(self, namespace: str) -> Kube:
        """A person of the group that manifests/cluster gives the Role `opd-user`."""
        return Kube(
            kubeconfig=self.kubeconfig(
                "someone", groups=[USER_GROUP], namespace=namespace, name=f"opd-user-{namespace}"
            )
        )

    def start_api(self) -> None:
        """Start etcd and kube-apiserver and wait until both answer."""
        self._start_etcd()
        self._start_apiserver()
        self.processes.wait_for("kube-apiserver", lambda: self._answers("/readyz"))

    def start_controllers(self) -> None:
        """Start kube-controller-manager and kube-scheduler; ready once the first service account is there."""
        manager = self.kubeconfig("system:kube-controller-manager", groups=[])
        self.processes.start(
            "kube-controller-manager",
            [
                find("kube-controller-manager"),
                f"--kubeconfig={manager}",
                f"--service-account-private-key-file={self._token_keys[0]}",
                f"--root-ca-file={self.authority.certificate}",
                "--use-service-account-credentials",
                "--allocate-node-cidrs",
                f"--cluster-cidr={POD_CIDR}",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
        )
        scheduler = self.kubeconfig("system:kube-scheduler", groups=[])
        self.processes.start(
            "kube-scheduler",
            [find("kube-scheduler"), f"--kubeconfig={scheduler}", "--leader-elect=false", "--secure-port=0"],
        )

    def wait_for_controllers(self) -> None:
        """The controllers work: the namespace `default` has its service account."""

        def has_account() -> bool:
            return bool(self.admin.run("get", "serviceaccount", "default", "--ignore-not-found"))

        self.processes.wait_for("kube-controller-manager", has_account)
        self.processes.check("kube-scheduler")

    def _start_etcd(self) -> None:
        client, peer = self._etcd, f"http://127.0.0.1:{self._etcd_peer}"
        self.processes.start(
            "etcd",
            [
                find("etcd"),
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",  # nothing here outlives the machine
            ],
        )
        self.processes.wait_for("etcd", lambda: answers(f"{client}/health"))

    def _start_apiserver(self) -> None:
        names = [self.address, "127.0.0.1", KUBERNETES_SERVICE_IP]
        services = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        hosts = [f"IP:{name}" for name in dict.fromkeys(names)]
        hosts += [f"DNS:{name}" for name in [*services, f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]]
        serving = self.authority.issue("kube-apiserver", user="kube-apiserver", hosts=hosts)
        kubelets = self.authority.issue("kubelet-client", user="kube-apiserver", groups=["system:masters"])
        token_key, token_public_key = self._token_keys
        is_local = self.address.startswith("127.")
        self.processes.start(
            "kube-apiserver",
            [
                find("kube-apiserver"),
                f"--etcd-servers={self._etcd}",
                f"--bind-address={self.address}",
                f"--secure-port={self._api}",
                # No endpoint may be a loopback address; without pods no process asks for the Service `kubernetes` either.
                *(["--endpoint-reconciler-type=none"] if is_local else [f"--advertise-address={self.address}"]),
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={self.authority.certificate}",
                f"--kubelet-client-certificate={kubelets.certificate}",
                f"--kubelet-client-key={kubelets.key}",
                f"--kubelet-certificate-authority={self.authority.certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={token_public_key}",
                f"--service-account-signing-key-file={token_key}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--cert-dir={self.folder / 'pki'}",
            ],
            GOGC="400",  # a quarter less CPU while it takes in KubeRay's CRDs
        )

    def _answers(self, path: str) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        return answers(f"{self.server}{path}", context)
