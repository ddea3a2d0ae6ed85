//! Sessions as state machines: what CONNECT may ask for, who owns a client identifier, the QoS hand-shakes of both directions,
//! and the order in which acknowledgements leave. None of them knows the log or the router; the engine passes values between
//! them. A persistent session is its subscriptions, one cursor over the log and its hand-shakes (design §7), so nothing here is
//! a queue of messages.
//!
//! | file | what it decides |
//! |---|---|
//! | [`connect`] | what CONNECT gets, or how it is refused; expiry; assigned client identifiers |
//! | [`registry`] | client identifier → session: takeover, clean start, expiry |
//! | [`will`] | when a will is published |
//! | [`subscribe`] | which filters are granted |
//! | [`aliases`] | topics behind a client's topic aliases |
//! | [`extensions`] | the `forebay-` user properties |
//! | [`inbound`] | QoS 1 and 2 from a client: duplicates, acknowledgements in order while some wait for the high watermark |
//! | [`packet_ids`], [`quota`] | sets of packet identifiers · the client's Receive Maximum as we announced it |
//! | [`outbound`] | QoS 1 and 2 to a client: packet identifiers, phases, the cursor, resuming |
//! | [`ack_queue`] | per I/O thread: who waits for which commit |
//! | [`durable`] | the values that the log keeps of a session |

pub mod ack_queue;
pub mod aliases;
pub mod connect;
pub mod durable;
pub mod extensions;
pub mod inbound;
pub mod outbound;
pub mod packet_ids;
pub mod quota;
pub mod registry;
pub mod subscribe;
pub mod will;
