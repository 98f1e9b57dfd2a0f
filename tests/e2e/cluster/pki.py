"""The cluster's certificate authority and what it signs, by the openssl program."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.processes import output

_DAYS = "30"
_openssl = partial(output, "openssl")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs server and client certificates; keeps everything in one folder that only its owner reads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._num_issued = 0
        subject = ("-subj", "/CN=opd-test-ca", "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        _openssl("req", "-x509", *_KEY, "-days", _DAYS, *subject, "-keyout", self._key, "-out", self.certificate)

    def issue(self, name: str, *, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Identity:
        """A certificate for a user of Kubernetes (CN) with groups (O), or a server under names `DNS:x` and `IP:x`."""
        made = Identity(certificate=self.folder / f"{name}.crt", key=self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        names = [f"subjectAltName={','.join(hosts)}"] if hosts else []
        extensions.write_text("\n".join([*names, "extendedKeyUsage=serverAuth,clientAuth"]))
        self._num_issued += 1
        serial = ("-set_serial", str(1000 + self._num_issued))
        _openssl("req", *_KEY, "-subj", subject, "-keyout", made.key, "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-days", _DAYS, *serial)
        _openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", made.certificate)
        return made

    def signing_keys(self, name: str) -> tuple[Path, Path]:
        """(private, public) key to sign service-account tokens with and to check them."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private)
        _openssl("pkey", "-in", private, "-pubout", "-out", public)
        return private, public
