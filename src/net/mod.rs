//! Sockets to packets and back, for one I/O thread.
//!
//! A turn of an I/O thread: [`Network::wait`] takes what epoll reports and lets the connections' tasks read and decode, until
//! nothing is ready or the turn is full; [`Network::inputs`] hands the packets to the engine, all in one go; [`Network::apply`]
//! takes the engine's outputs; [`Network::flush`] sends, once per connection. Nothing here knows what a packet means, except what
//! a connection must be counted by.

pub mod connection;
pub mod listener;
pub mod outbox;
pub mod reactor;
pub mod socket;
pub mod table;

mod network;
#[cfg(test)]
pub(crate) mod test_client;
#[cfg(test)]
mod tests;

pub use listener::{BindError, Incoming, Quota, bind};
pub use network::Network;
pub use reactor::Bell;
pub use table::thread_of;
