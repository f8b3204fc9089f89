"""Which pod holds which GPU, as the kubelet's pod-resources service tells it over its Unix socket (gRPC, v1).

Needs the extra `kubernetes`. The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, as far as
they are used here; a field that is not named here is skipped by the library.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from nodewarden.errors import DeviceError
from nodewarden.model.workload import GpuJob

LIST = "/v1.PodResourcesLister/List"
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 16 << 20


async def pods(socket_path: str) -> dict[str, tuple[GpuJob, ...]]:
    """Device id (uuid of a GPU or MIG instance) -> the pods that hold it.

    Raises DeviceError, reason "not_installed" without the extra, "timeout", or "no_answer".
    """
    try:
        import grpc  # noqa: PLC0415 -- an extra, and 10 MB
        import grpc.aio  # noqa: PLC0415
    except ImportError:
        raise DeviceError("needs the extra: pip install 'nodewarden[kubernetes]'", "not_installed") from None
    answer = messages()["ListPodResourcesResponse"]
    options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket_path}", options=options) as channel:
        call = channel.unary_unary(LIST, request_serializer=None, response_deserializer=answer.FromString)
        try:
            told = await call(b"", timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            is_late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            raise DeviceError(
                f"kubelet at {socket_path}: {error.details()}", "timeout" if is_late else "no_answer"
            ) from error
    if told is None:  # grpc's answer for bytes that the deserializer refused
        raise DeviceError(f"kubelet at {socket_path}: its answer is not a list of pods", "no_answer")
    found: dict[str, tuple[GpuJob, ...]] = {}
    for device, job in _held(told):
        found[device] = (*found.get(device, ()), job)
    return found


def _held(told: Any) -> Iterator[tuple[str, GpuJob]]:
    for pod in told.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if not devices.resource_name.startswith("nvidia.com/"):
                    continue
                for device in devices.device_ids:
                    uuid = device.partition("::")[0]  # a GPU shared in time is listed as UUID::REPLICA
                    yield (
                        uuid,
                        GpuJob(
                            id=f"{pod.namespace}/{pod.name}",
                            source="kubernetes",
                            namespace=pod.namespace,
                            pod=pod.name,
                            container=container.name,
                        ),
                    )


_STRING, _MESSAGE, _ONE, _MANY = 9, 11, 1, 3  # FieldDescriptorProto: TYPE_*, LABEL_OPTIONAL and LABEL_REPEATED
_FIELDS: dict[str, tuple[tuple[str, int, str, int], ...]] = {
    "ContainerDevices": (("resource_name", 1, "", _ONE), ("device_ids", 2, "", _MANY)),
    "ContainerResources": (("name", 1, "", _ONE), ("devices", 2, "ContainerDevices", _MANY)),
    "PodResources": (("name", 1, "", _ONE), ("namespace", 2, "", _ONE), ("containers", 3, "ContainerResources", _MANY)),
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", _MANY),),
}


@cache
def messages() -> dict[str, Any]:
    """The message classes, by name. Raises ImportError without the extra."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(name="nodewarden_pod_resources.proto", package="v1", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, of, label in fields:
            added = message.field.add(name=field, number=number, label=label, type=_MESSAGE if of else _STRING)
            if of:
                added.type_name = f".v1.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _FIELDS}
