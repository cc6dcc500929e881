"""Settings of `neuronserve run-batch`."""

from pathlib import Path

from pydantic import Field

from .serve import ServeSettings

OF_HTTP = frozenset(  # without effect, because nothing listens
    {"host", "port", "health_port", "replicas"}
    | {"api_key", "api_key_file", "admin_api_key", "api_keys_file", "public_paths"}
    | {"ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"}
    | {"allowed_origins", "allowed_hosts", "shutdown_timeout", "disable_access_log"}
    | {"data_dir", "max_file_bytes", "max_data_bytes", "ready_file"}
)


class RunBatchSettings(ServeSettings):
    """Settings of a server that answers a file instead of listening."""

    input_file: Path = Field(description="JSON lines with custom_id, url and body, as /v1/batches takes them")
    output_file: Path = Field(description="file of answers, one for each line; an existing file is replaced")

    @property
    def port_data_dir(self) -> None:
        """None: a batch of one file stores nothing."""

    @property
    def notices(self) -> tuple[str, ...]:
        given = sorted(OF_HTTP & self.model_fields_set)
        return (
            *super().notices,
            *(f"--{name.replace('_', '-')} has no effect: run-batch is no server" for name in given),
        )
