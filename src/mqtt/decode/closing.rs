//! DISCONNECT and AUTH.
//!
//! The reasons are checked against the packet's table, not against the side that may send each: both packets end or begin
//! something that the other side judges by its state, not by its bytes.

use super::reader::Reader;
use super::{DecodeError, properties};
use crate::mqtt::packet::{Auth, Disconnect};
use crate::mqtt::properties::{AuthProperties, DisconnectProperties};
use crate::mqtt::reason::Reason;

/// [MQTT-3.14]. In MQTT 5 the properties may be left out, and the reason too if it is normal.
pub(super) fn disconnect(reader: &mut Reader<'_>, v5: bool) -> Result<Disconnect, DecodeError> {
    let mut disconnect = Disconnect { reason: Reason::SUCCESS, properties: DisconnectProperties::default() };
    if v5 && !reader.is_empty() {
        disconnect.reason = Reason(reader.u8()?);
        if !disconnect.reason.in_disconnect() {
            return Err(DecodeError::malformed("a reason code that DISCONNECT does not have [MQTT-3.14.2-1]"));
        }
        if !reader.is_empty() {
            disconnect.properties = properties::disconnect(reader)?;
        }
    }
    Ok(disconnect)
}

/// [MQTT-3.15]. Reason and properties may be left out together; where they stand, the method stands.
pub(super) fn auth(reader: &mut Reader<'_>) -> Result<Auth, DecodeError> {
    if reader.is_empty() {
        return Ok(Auth { reason: Reason::SUCCESS, properties: AuthProperties::default() });
    }
    let reason = Reason(reader.u8()?);
    if !reason.in_auth() {
        return Err(DecodeError::malformed("a reason code that AUTH does not have [MQTT-3.15.2-1]"));
    }
    let properties = properties::auth(reader)?;
    let bare = reason == Reason::SUCCESS && properties == AuthProperties::default();
    if properties.authentication_method.is_none() && !bare {
        return Err(DecodeError::protocol("AUTH without a method [MQTT-3.15.2.2.2]"));
    }
    Ok(Auth { reason, properties })
}
