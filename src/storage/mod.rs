//! The two stores under the log on a real medium: segments as files, looked-up state on sled; and the data directory around them.
//!
//! [`open`] is the way in: it locks the directory, opens both stores, decides whether the state may be believed, and lets
//! `log::recovery` bring the log back.

pub mod data_dir;
mod error;
pub mod file_store;
pub mod identity;
mod open;
pub mod sled_state;
mod trust;
pub mod view;

pub use data_dir::{DataDir, Usage, usage};
pub use error::{OpenError, store_error};
pub use file_store::FileStore;
pub use open::{Opened, open, open_existing};
pub use sled_state::SledState;
pub use view::ViewStore;
