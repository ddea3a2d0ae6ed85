//! The wire format of MQTT 3.1, 3.1.1 and 5.0: bytes to packets and back, strict, incremental and without I/O.
//!
//! [`decode`] reads what a peer sent: it looks at the fixed header first, refuses what is too large or out of place before it is
//! there, and takes topics and payloads as slices of the bytes that were read. [`encode`] writes packets in the shortest form that
//! the standard allows, and refuses to write what a strict peer would refuse to read. [`topic`] knows names, filters and matching.
//! Of 3.1 only CONNECT differs, and that DUP may stand on a repeated PUBREL, SUBSCRIBE or UNSUBSCRIBE.

pub mod decode;
pub mod encode;
pub mod packet;
pub mod properties;
pub mod reason;
pub mod text;
pub mod topic;
mod wire;

pub use packet::*;
pub use reason::Reason;
pub use text::Text;
