//! Reason codes of MQTT 5.0 [MQTT-2.4]; 3.1.1's return codes where they stand in CONNACK and SUBACK.

/// A reason code. 0x80 and above is a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason(pub u8);

impl Reason {
    /// Success, normal disconnection, granted QoS 0.
    pub const SUCCESS: Self = Self(0x00);
    /// Disconnect, but publish the will.
    pub const DISCONNECT_WITH_WILL: Self = Self(0x04);
    /// Stored or accepted, though nobody subscribes.
    pub const NO_MATCHING_SUBSCRIBERS: Self = Self(0x10);
    /// UNSUBACK: there was no such subscription.
    pub const NO_SUBSCRIPTION_EXISTED: Self = Self(0x11);
    /// AUTH: go on.
    pub const CONTINUE_AUTHENTICATION: Self = Self(0x18);
    /// AUTH: once more.
    pub const REAUTHENTICATE: Self = Self(0x19);
    /// Unspecified error; SUBACK failure in 3.1.1.
    pub const UNSPECIFIED: Self = Self(0x80);
    /// Malformed packet.
    pub const MALFORMED_PACKET: Self = Self(0x81);
    /// Protocol error.
    pub const PROTOCOL_ERROR: Self = Self(0x82);
    /// Implementation specific error.
    pub const IMPLEMENTATION_SPECIFIC: Self = Self(0x83);
    /// Unsupported protocol version.
    pub const UNSUPPORTED_VERSION: Self = Self(0x84);
    /// Client identifier not valid.
    pub const CLIENT_ID_NOT_VALID: Self = Self(0x85);
    /// Bad user name or password.
    pub const BAD_USERNAME_OR_PASSWORD: Self = Self(0x86);
    /// Not authorized.
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    /// Server unavailable.
    pub const SERVER_UNAVAILABLE: Self = Self(0x88);
    /// Server busy.
    pub const SERVER_BUSY: Self = Self(0x89);
    /// Banned.
    pub const BANNED: Self = Self(0x8A);
    /// Server shutting down.
    pub const SERVER_SHUTTING_DOWN: Self = Self(0x8B);
    /// Bad authentication method.
    pub const BAD_AUTHENTICATION_METHOD: Self = Self(0x8C);
    /// Keep alive timeout.
    pub const KEEP_ALIVE_TIMEOUT: Self = Self(0x8D);
    /// Session taken over.
    pub const SESSION_TAKEN_OVER: Self = Self(0x8E);
    /// Topic filter invalid.
    pub const TOPIC_FILTER_INVALID: Self = Self(0x8F);
    /// Topic name invalid.
    pub const TOPIC_NAME_INVALID: Self = Self(0x90);
    /// Packet identifier in use.
    pub const PACKET_ID_IN_USE: Self = Self(0x91);
    /// Packet identifier not found.
    pub const PACKET_ID_NOT_FOUND: Self = Self(0x92);
    /// Receive maximum exceeded.
    pub const RECEIVE_MAXIMUM_EXCEEDED: Self = Self(0x93);
    /// Topic alias invalid.
    pub const TOPIC_ALIAS_INVALID: Self = Self(0x94);
    /// Packet too large.
    pub const PACKET_TOO_LARGE: Self = Self(0x95);
    /// Message rate too high.
    pub const MESSAGE_RATE_TOO_HIGH: Self = Self(0x96);
    /// Quota exceeded: the disk budget, for instance.
    pub const QUOTA_EXCEEDED: Self = Self(0x97);
    /// Administrative action.
    pub const ADMINISTRATIVE_ACTION: Self = Self(0x98);
    /// Payload format invalid.
    pub const PAYLOAD_FORMAT_INVALID: Self = Self(0x99);
    /// Retain not supported.
    pub const RETAIN_NOT_SUPPORTED: Self = Self(0x9A);
    /// QoS not supported.
    pub const QOS_NOT_SUPPORTED: Self = Self(0x9B);
    /// Use another server.
    pub const USE_ANOTHER_SERVER: Self = Self(0x9C);
    /// Server moved.
    pub const SERVER_MOVED: Self = Self(0x9D);
    /// Shared subscriptions not supported.
    pub const SHARED_NOT_SUPPORTED: Self = Self(0x9E);
    /// Connection rate exceeded.
    pub const CONNECTION_RATE_EXCEEDED: Self = Self(0x9F);
    /// Maximum connect time.
    pub const MAXIMUM_CONNECT_TIME: Self = Self(0xA0);
    /// Subscription identifiers not supported.
    pub const SUBSCRIPTION_IDS_NOT_SUPPORTED: Self = Self(0xA1);
    /// Wildcard subscriptions not supported.
    pub const WILDCARDS_NOT_SUPPORTED: Self = Self(0xA2);

    /// SUBACK: granted QoS 1.
    pub const GRANTED_QOS_1: Self = Self(0x01);
    /// SUBACK: granted QoS 2.
    pub const GRANTED_QOS_2: Self = Self(0x02);

    /// Whether it says that something failed.
    pub fn is_failure(self) -> bool {
        self.0 >= 0x80
    }

    /// Whether it may stand in a CONNACK of 5.0 [MQTT-3.2.2-8].
    pub fn in_connack(self) -> bool {
        matches!(self.0, 0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F)
    }

    /// Whether it may stand in PUBACK and PUBREC [MQTT-3.4.2-1] [MQTT-3.5.2-1].
    pub fn in_publish_ack(self) -> bool {
        matches!(self.0, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
    }

    /// Whether it may stand in PUBREL and PUBCOMP [MQTT-3.6.2-1] [MQTT-3.7.2-1].
    pub fn in_release(self) -> bool {
        matches!(self.0, 0x00 | 0x92)
    }

    /// Whether it may stand in a SUBACK of 5.0 [MQTT-3.9.3-2].
    pub fn in_suback(self) -> bool {
        matches!(self.0, 0x00..=0x02 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2)
    }

    /// Whether it may stand in an UNSUBACK [MQTT-3.11.3-2].
    pub fn in_unsuback(self) -> bool {
        matches!(self.0, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91)
    }

    /// Whether it may stand in a DISCONNECT [MQTT-3.14.2-1]. (0x8C is missing in the table there, but section 2.4 has it.)
    pub fn in_disconnect(self) -> bool {
        matches!(self.0, 0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2)
    }

    /// Whether it may stand in an AUTH [MQTT-3.15.2-1].
    pub fn in_auth(self) -> bool {
        matches!(self.0, 0x00 | 0x18 | 0x19)
    }

    /// The return code of a 3.1.1 CONNACK that says the same; `None` where there is none and the connection is just closed
    /// [MQTT-3.2.2-6].
    pub fn return_code(self) -> Option<Self> {
        match self {
            Self::SUCCESS => Some(Self(0)),
            Self::UNSUPPORTED_VERSION => Some(Self(1)),
            Self::CLIENT_ID_NOT_VALID => Some(Self(2)),
            Self::SERVER_UNAVAILABLE | Self::SERVER_BUSY => Some(Self(3)),
            Self::BAD_USERNAME_OR_PASSWORD => Some(Self(4)),
            Self::NOT_AUTHORIZED | Self::BANNED => Some(Self(5)),
            _ => None,
        }
    }
}
