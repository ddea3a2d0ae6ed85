//! What CONNECT may ask for, what it gets, and how a refusal is told in each version of the protocol.

use super::extensions::{ACK_OFFSETS, value};
use super::will::KeptWill;
use crate::limits::{
    CLIENT_ID_BYTES_MAX, REMAINING_LENGTH_MAX, TOPIC_ALIASES_MAX, USER_NAME_BYTES_MAX, WILL_BYTES_MAX,
};
use crate::mqtt::properties::{ConnAckProperties, DisconnectProperties};
use crate::mqtt::topic::valid_topic;
use crate::mqtt::{ConnAck, Connect, Disconnect, Reason, Text, Version};
use core::fmt::Write as _;
use serde::{Deserialize, Serialize};

/// Largest packet there can be: a fixed header with the largest remaining length.
const PACKET_MAX: u32 = REMAINING_LENGTH_MAX + 5;

/// How long a session outlives its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expiry {
    /// Not at all.
    #[default]
    WithConnection,
    /// So many seconds, at least 1.
    AfterSeconds(u32),
    /// For ever.
    Never,
}

impl Expiry {
    /// From the property of MQTT 5: 0 or absent, seconds, or 0xFFFF_FFFF for ever [MQTT-3.1.2.11.2].
    pub fn from_property(seconds: Option<u32>) -> Self {
        match seconds {
            None | Some(0) => Self::WithConnection,
            Some(u32::MAX) => Self::Never,
            Some(seconds) => Self::AfterSeconds(seconds),
        }
    }

    /// Whether the session is to be kept without a connection.
    pub fn is_persistent(self) -> bool {
        self != Self::WithConnection
    }
}

/// What the server allows on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Clients without a user name. In this version there are no users, so that without it nobody may come in.
    pub allow_anonymous: bool,
    /// QoS 1 and 2 messages in flight, in each direction.
    pub max_inflight: u16,
    /// Bytes of the largest packet.
    pub max_packet_size: u32,
}

/// A CONNECT that is let in, with everything made explicit. Its texts do not hold on to the read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Version of the protocol.
    pub version: Version,
    /// Client identifier, assigned by us where it was empty.
    pub client_id: Text,
    /// Whether it was.
    pub assigned: bool,
    /// User name.
    pub username: Option<Text>,
    /// Whether a former session is to be forgotten.
    pub clean_start: bool,
    /// How long the session outlives the connection.
    pub expiry: Expiry,
    /// Nanoseconds without a packet after which the connection is closed [MQTT-3.1.2-22]; `None` never.
    pub idle_limit_ns: Option<u64>,
    /// QoS 1 and 2 messages that may be in flight to the client: its Receive Maximum, at most the listener's.
    pub send_max: u16,
    /// QoS 1 and 2 messages that may be in flight from the client, as announced; 3.1.1 has no such bound.
    pub receive_max: Option<u16>,
    /// Bytes of the largest packet that it takes.
    pub max_packet_size: u32,
    /// Its will.
    pub will: Option<KeptWill>,
    /// Whether reason strings and user properties may stand in acknowledgements [MQTT-3.1.2-29].
    pub problem_information: bool,
    /// Whether acknowledgements carry the source (`forebay-ack-offsets`).
    pub ack_offsets: bool,
}

/// A CONNECT that is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason, as MQTT 5 has it.
    pub reason: Reason,
    /// Why, for people.
    pub text: &'static str,
}

impl Refusal {
    fn new(reason: Reason, text: &'static str) -> Self {
        Self { reason, text }
    }

    /// The CONNACK that tells it, or `None` where the version has no code for it and the connection is just closed.
    pub fn answer(&self, version: Version) -> Option<ConnAck> {
        let mut properties = ConnAckProperties::default();
        let reason = match version {
            Version::V5 => {
                properties.reason_string = Some(Text::from_static(self.text));
                self.reason
            }
            Version::V31 | Version::V311 => return_code(self.reason)?,
        };
        Some(ConnAck { session_present: false, reason, properties })
    }
}

/// The return code of MQTT 3.1.1 that says the same [MQTT-3.2.2.3]; `None` if none does.
pub fn return_code(reason: Reason) -> Option<Reason> {
    let code = match reason {
        Reason::SUCCESS => 0,
        Reason::UNSUPPORTED_VERSION => 1,
        Reason::CLIENT_ID_NOT_VALID => 2,
        Reason::SERVER_UNAVAILABLE | Reason::SERVER_BUSY | Reason::SERVER_SHUTTING_DOWN | Reason::QUOTA_EXCEEDED => 3,
        Reason::BAD_USERNAME_OR_PASSWORD => 4,
        Reason::NOT_AUTHORIZED | Reason::BANNED => 5,
        _ => return None,
    };
    Some(Reason(code))
}

/// Checks a CONNECT. `assign` makes a client identifier that nobody has; it is called only for an empty one.
///
/// # Errors
/// When it cannot be let in.
pub fn check(connect: &Connect, policy: &Policy, assign: impl FnOnce() -> Text) -> Result<Accepted, Refusal> {
    let v5 = connect.version == Version::V5;
    let properties = &connect.properties;
    if properties.authentication_method.is_some() {
        return Err(Refusal::new(Reason::BAD_AUTHENTICATION_METHOD, "extended authentication is not supported"));
    }
    check_user(connect, policy)?;
    let client_id = check_client_id(connect)?;
    let expiry = match connect.version {
        Version::V5 => Expiry::from_property(properties.session_expiry_s),
        _ if connect.clean_start => Expiry::WithConnection,
        _ => Expiry::Never,
    };
    let will = connect.will.as_deref().map(|will| {
        if v5 && will.retain {
            return Err(Refusal::new(
                Reason::RETAIN_NOT_SUPPORTED,
                "retained messages are not supported by this version",
            ));
        }
        if !valid_topic(will.topic.as_bytes()) {
            return Err(Refusal::new(Reason::TOPIC_NAME_INVALID, "the will's topic is not a topic name"));
        }
        let will = KeptWill::new(will);
        if will.bytes() > WILL_BYTES_MAX {
            return Err(Refusal::new(Reason::QUOTA_EXCEEDED, "the will is larger than 64 KiB"));
        }
        Ok(will)
    });
    let will = will.transpose()?;
    // Reason strings and user properties in acknowledgements only on request [MQTT-3.1.2-29].
    let problem_information = v5 && properties.request_problem_information.unwrap_or(true);
    Ok(Accepted {
        version: connect.version,
        assigned: client_id.is_none(),
        client_id: client_id.unwrap_or_else(assign),
        username: connect.username.as_ref().map(Text::detached),
        clean_start: connect.clean_start,
        expiry,
        idle_limit_ns: (connect.keep_alive_s > 0).then(|| u64::from(connect.keep_alive_s) * 1_500_000_000),
        send_max: properties.receive_maximum.unwrap_or(u16::MAX).min(policy.max_inflight).max(1),
        receive_max: v5.then_some(policy.max_inflight.max(1)),
        max_packet_size: properties.maximum_packet_size.unwrap_or(PACKET_MAX).min(PACKET_MAX),
        will,
        problem_information,
        ack_offsets: problem_information && value(&properties.user, ACK_OFFSETS).is_some_and(|v| v.as_bytes() == b"1"),
    })
}

/// Without users to know, a name proves nothing: it is let in where anybody is, and refused like a wrong one elsewhere.
fn check_user(connect: &Connect, policy: &Policy) -> Result<(), Refusal> {
    match &connect.username {
        Some(name) if name.len() > USER_NAME_BYTES_MAX => {
            Err(Refusal::new(Reason::BAD_USERNAME_OR_PASSWORD, "the user name is longer than 1024 bytes"))
        }
        _ if policy.allow_anonymous => Ok(()),
        Some(_) => Err(Refusal::new(Reason::BAD_USERNAME_OR_PASSWORD, "bad user name or password")),
        None => Err(Refusal::new(Reason::NOT_AUTHORIZED, "anonymous clients are not allowed")),
    }
}

/// The client identifier, `None` where one is to be assigned [MQTT-3.1.3-6] [MQTT-3.1.3-7] (3.1.1) [MQTT-3.1.3-8].
fn check_client_id(connect: &Connect) -> Result<Option<Text>, Refusal> {
    let invalid = |text| Err(Refusal::new(Reason::CLIENT_ID_NOT_VALID, text));
    if connect.client_id.len() > CLIENT_ID_BYTES_MAX {
        return invalid("the client identifier is longer than 1024 bytes");
    }
    if !connect.client_id.is_empty() {
        return Ok(Some(connect.client_id.detached()));
    }
    match connect.version {
        Version::V5 => Ok(None),
        Version::V311 if connect.clean_start => Ok(None),
        Version::V311 => invalid("an empty client identifier needs a clean session"),
        Version::V31 => invalid("MQTT 3.1 needs a client identifier"),
    }
}

/// The CONNACK that lets a client in: it names what differs from the standard's defaults, and what this version has not.
pub fn welcome(accepted: &Accepted, policy: &Policy, session_present: bool) -> ConnAck {
    let properties = match accepted.version {
        Version::V5 => ConnAckProperties {
            receive_maximum: accepted.receive_max.filter(|max| *max < u16::MAX),
            maximum_packet_size: Some(policy.max_packet_size).filter(|max| *max < PACKET_MAX),
            retain_available: Some(false),
            shared_available: Some(false),
            topic_alias_maximum: Some(TOPIC_ALIASES_MAX),
            assigned_client_id: accepted.assigned.then(|| accepted.client_id.clone()),
            ..Default::default()
        },
        Version::V31 | Version::V311 => ConnAckProperties::default(),
    };
    // Session present came with 3.1.1; in 3.1 the byte is reserved.
    ConnAck {
        session_present: session_present && accepted.version != Version::V31,
        reason: Reason::SUCCESS,
        properties,
    }
}

/// The expiry that holds after a client's DISCONNECT.
///
/// # Errors
/// [`Reason::PROTOCOL_ERROR`] when a session that ends with its connection is asked to stay after all [MQTT-3.14.2.2.2].
pub fn expiry_after(at_connect: Expiry, disconnect: &Disconnect) -> Result<Expiry, Reason> {
    match disconnect.properties {
        DisconnectProperties { session_expiry_s: Some(seconds), .. } => match Expiry::from_property(Some(seconds)) {
            later if later.is_persistent() && !at_connect.is_persistent() => Err(Reason::PROTOCOL_ERROR),
            other => Ok(other),
        },
        _ => Ok(at_connect),
    }
}

/// Client identifiers that we assign: never the same twice in a run, and from another series in each.
#[derive(Clone, Debug)]
pub struct ClientIds {
    seed: u64,
    assigned: u64,
}

impl ClientIds {
    /// A series that follows from the seed, which is random in each run.
    pub fn new(seed: u64) -> Self {
        Self { seed, assigned: 0 }
    }

    /// The next one that is not `taken`. Sessions kept from former runs may have one of theirs.
    pub fn assign(&mut self, taken: impl Fn(&Text) -> bool) -> Text {
        loop {
            self.assigned += 1;
            let mut id = String::from("auto-");
            // Writing to a string does not fail.
            let _ =
                write!(id, "{:016x}", mix(self.seed.wrapping_add(self.assigned.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
            let id = Text::from(id);
            // Each number comes once, so this ends with the sessions that there may be.
            if !taken(&id) {
                return id;
            }
        }
    }
}

/// The finaliser of SplitMix64, which maps numbers to numbers one to one.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::properties::{ConnectProperties, WillProperties};
    use crate::mqtt::{QoS, Will};
    use bytes::Bytes;
    use std::collections::HashSet;

    const POLICY: Policy = Policy { allow_anonymous: true, max_inflight: 32, max_packet_size: 1 << 20 };

    fn connect(version: Version, client_id: &str, clean_start: bool) -> Connect {
        Connect {
            version,
            clean_start,
            keep_alive_s: 60,
            client_id: Text::from(client_id),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties::default(),
        }
    }

    fn checked(connect: &Connect) -> Result<Accepted, Reason> {
        check(connect, &POLICY, || Text::from_static("auto-1")).map_err(|refusal| refusal.reason)
    }

    #[test]
    fn an_empty_client_identifier_gets_one_where_the_version_allows_it() {
        let v5 = checked(&connect(Version::V5, "", false)).unwrap();
        assert!(v5.assigned);
        assert_eq!(welcome(&v5, &POLICY, false).properties.assigned_client_id, Some(Text::from("auto-1")));
        assert!(checked(&connect(Version::V311, "", true)).unwrap().assigned);
        for refused in [connect(Version::V311, "", false), connect(Version::V31, "", true)] {
            let refusal = check(&refused, &POLICY, || Text::from("x")).unwrap_err();
            assert_eq!(refusal.answer(refused.version).unwrap().reason, Reason(2));
        }
        assert_eq!(checked(&connect(Version::V5, &"x".repeat(1025), true)), Err(Reason(0x85)));
        assert!(!checked(&connect(Version::V31, &"x".repeat(1024), true)).unwrap().assigned);
    }

    #[test]
    fn a_session_stays_as_long_as_the_version_says() {
        let expiry = |connect: &Connect| checked(connect).unwrap().expiry;
        assert_eq!(expiry(&connect(Version::V311, "a", true)), Expiry::WithConnection);
        assert_eq!(expiry(&connect(Version::V311, "a", false)), Expiry::Never);
        let mut v5 = connect(Version::V5, "a", false);
        assert_eq!(expiry(&v5), Expiry::WithConnection);
        for (seconds, want) in [(0, Expiry::WithConnection), (7, Expiry::AfterSeconds(7)), (u32::MAX, Expiry::Never)] {
            v5.properties.session_expiry_s = Some(seconds);
            assert_eq!(expiry(&v5), want);
        }
    }

    #[test]
    fn disconnect_may_change_the_expiry_but_not_from_nothing() {
        let disconnect = |seconds| Disconnect {
            reason: Reason::SUCCESS,
            properties: DisconnectProperties { session_expiry_s: seconds, ..Default::default() },
        };
        assert_eq!(expiry_after(Expiry::Never, &disconnect(Some(5))), Ok(Expiry::AfterSeconds(5)));
        assert_eq!(expiry_after(Expiry::Never, &disconnect(Some(0))), Ok(Expiry::WithConnection));
        assert_eq!(expiry_after(Expiry::AfterSeconds(3), &disconnect(None)), Ok(Expiry::AfterSeconds(3)));
        assert_eq!(expiry_after(Expiry::WithConnection, &disconnect(Some(0))), Ok(Expiry::WithConnection));
        assert_eq!(expiry_after(Expiry::WithConnection, &disconnect(Some(5))), Err(Reason::PROTOCOL_ERROR));
    }

    #[test]
    fn the_clients_bounds_are_kept_and_ours_announced() {
        let mut asked = connect(Version::V5, "a", true);
        asked.keep_alive_s = 10;
        asked.properties.receive_maximum = Some(5);
        asked.properties.maximum_packet_size = Some(100);
        let accepted = checked(&asked).unwrap();
        assert_eq!(accepted.idle_limit_ns, Some(15_000_000_000));
        assert_eq!((accepted.send_max, accepted.receive_max, accepted.max_packet_size), (5, Some(32), 100));
        let welcome = welcome(&accepted, &POLICY, true);
        assert!(welcome.session_present);
        let want = ConnAckProperties {
            receive_maximum: Some(32),
            maximum_packet_size: Some(1 << 20),
            retain_available: Some(false),
            shared_available: Some(false),
            topic_alias_maximum: Some(TOPIC_ALIASES_MAX),
            ..Default::default()
        };
        assert_eq!(welcome.properties, want);
        let mut old = connect(Version::V31, "a", false);
        old.keep_alive_s = 0;
        let accepted = checked(&old).unwrap();
        assert_eq!((accepted.idle_limit_ns, accepted.send_max, accepted.receive_max), (None, 32, None));
        assert_eq!(super::welcome(&accepted, &POLICY, true).properties, ConnAckProperties::default());
        assert!(!super::welcome(&accepted, &POLICY, true).session_present, "reserved in 3.1");
    }

    #[test]
    fn without_anonymous_access_nobody_comes_in_as_long_as_there_are_no_users() {
        let policy = Policy { allow_anonymous: false, ..POLICY };
        let mut asked = connect(Version::V311, "a", true);
        let code = |asked: &Connect| {
            check(asked, &policy, || Text::from("x")).unwrap_err().answer(asked.version).unwrap().reason
        };
        assert_eq!(code(&asked), Reason(5));
        asked.username = Some(Text::from("user"));
        assert_eq!(code(&asked), Reason(4));
        asked.version = Version::V5;
        assert_eq!(code(&asked), Reason(0x86));
        assert!(check(&asked, &POLICY, || Text::from("x")).is_ok());
    }

    #[test]
    fn what_this_version_has_not_is_refused_with_the_standards_code() {
        let mut asked = connect(Version::V5, "a", true);
        asked.properties.authentication_method = Some(Text::from("SCRAM-SHA-1"));
        assert_eq!(checked(&asked), Err(Reason(0x8C)));
        let mut asked = connect(Version::V5, "a", true);
        asked.will = Some(Box::new(Will {
            topic: Text::from("w"),
            payload: Bytes::new(),
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: WillProperties::default(),
        }));
        assert_eq!(checked(&asked), Err(Reason(0x9A)));
        asked.version = Version::V311;
        assert!(checked(&asked).unwrap().will.is_some(), "3.1.1 cannot be told: a plain message");
        asked.will.as_mut().unwrap().topic = Text::from("a/#");
        let refusal = check(&asked, &POLICY, || Text::from("x")).unwrap_err();
        assert_eq!(refusal.answer(Version::V311), None, "closed without a word");
        assert_eq!(refusal.answer(Version::V5).unwrap().reason, Reason(0x90));
    }

    #[test]
    fn ack_offsets_need_leave_to_send_user_properties() {
        let mut asked = connect(Version::V5, "a", true);
        asked.properties.user = vec![(Text::from(ACK_OFFSETS), Text::from("1"))];
        assert!(checked(&asked).unwrap().ack_offsets);
        asked.properties.request_problem_information = Some(false);
        assert!(!checked(&asked).unwrap().ack_offsets);
    }

    #[test]
    fn assigned_identifiers_never_repeat() {
        let mut ids = ClientIds::new(1);
        let first = ids.assign(|_| false);
        let mut seen: HashSet<Text> = HashSet::from([first.clone()]);
        assert!((0..10_000).all(|_| seen.insert(ids.assign(|_| false))));
        assert_ne!(ClientIds::new(1).assign(|id| *id == first), first);
        assert_ne!(ClientIds::new(2).assign(|_| false), first);
    }
}
