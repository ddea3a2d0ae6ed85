//! Bugs that a test plants in the real code, so that the simulator is known to find each of them. A release build has none of this:
//! [`bug`] is `false` there, and the compiler removes what asks for it.

/// A bug that can be planted. Its name on the command line is the variant's in kebab case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Acknowledgements leave before their frame is synced.
    AckBeforeSync,
}

impl Bug {
    /// Every one.
    pub const ALL: &[(&str, Self)] = &[("ack-before-sync", Self::AckBeforeSync)];
}

#[cfg(debug_assertions)]
mod switch {
    use super::Bug;
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local!(static HERE: Cell<Option<Bug>> = const { Cell::new(None) });
    static EVERYWHERE: OnceLock<Bug> = OnceLock::new();

    /// Whether `bug` is planted: in this thread, or in the whole process.
    pub fn bug(bug: Bug) -> bool {
        HERE.get() == Some(bug) || EVERYWHERE.get() == Some(&bug)
    }

    /// Plants a bug in this thread, or removes it.
    pub fn plant(bug: Option<Bug>) {
        HERE.set(bug);
    }

    /// Plants a bug in the whole process, for good.
    pub fn plant_everywhere(bug: Bug) {
        let _ = EVERYWHERE.set(bug);
    }
}

#[cfg(debug_assertions)]
pub use switch::{bug, plant, plant_everywhere};

/// Nothing is planted in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn bug(_bug: Bug) -> bool {
    false
}
