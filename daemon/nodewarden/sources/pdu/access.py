"""From the configuration of a PDU to what its device asks for."""

from nodewarden.config import PduConfig
from nodewarden.devices.snmp_access import Community, Credentials, User
from nodewarden.errors import NotSupportedError


def credentials_of(config: PduConfig) -> Credentials:
    """Community or v3 user of a configured PDU.

    Raises:
        NotSupportedError: when the configuration was read without its secrets, or they cannot be used; with what to do.
    """
    try:
        if config.version != "3":
            return Community("" if config.community is None else config.community.reveal(), config.version)
        auth = priv = None
        if config.auth is not None:
            auth = config.auth.protocol, _text(config.auth.secret)
        if config.priv is not None:
            priv = config.priv.protocol, _text(config.priv.secret)
        return User(config.user or "", auth=auth, priv=priv, context=config.context)
    except ValueError as error:
        raise NotSupportedError(f"PDU {config.name} cannot be asked: {error}") from None


def _text(secret: object) -> str:
    reveal = getattr(secret, "reveal", None)
    return "" if reveal is None else str(reveal())
