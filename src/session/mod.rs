//! Sessions as state machines: what CONNECT may ask for, who owns a client identifier, the QoS hand-shakes of both directions,
//! and the order in which acknowledgements leave. None of them knows the log or the router; the engine passes values between
//! them. A persistent session is its subscriptions, one cursor over the log and its hand-shakes (design §7), so nothing here is
//! a queue of messages.

pub mod ack_queue;
