//! The wire format of MQTT 3.1, 3.1.1 and 5.0: bytes to packets and back, strict, incremental and without I/O.

pub mod decode;
pub mod encode;
pub mod packet;
pub mod properties;
pub mod reason;
pub mod text;
pub mod topic;

pub use packet::*;
pub use reason::Reason;
pub use text::Text;
