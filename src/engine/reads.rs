//! Reads under way: which ticket belongs to whom, and how many there may be.

use crate::limits::READS_OUTSTANDING_MAX;
use crate::types::{SessionId, Ticket, UpstreamId};
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Session(SessionId),
    Upstream(UpstreamId),
    Admin(Ticket),
}

/// The reads under way.
#[derive(Debug, Default)]
pub(super) struct Reads {
    next: u64,
    under_way: HashMap<Ticket, Asker, FixedState>,
    /// Who was turned away while all places were taken; looked at again when one is free.
    turned_away: Vec<Asker>,
}

impl Reads {
    /// A ticket, if a place is free.
    pub(super) fn ticket(&mut self, asker: Asker) -> Option<Ticket> {
        if self.under_way.len() >= READS_OUTSTANDING_MAX {
            if !self.turned_away.contains(&asker) {
                self.turned_away.push(asker);
            }
            return None;
        }
        self.next += 1;
        let ticket = Ticket(self.next);
        self.under_way.insert(ticket, asker);
        Some(ticket)
    }

    /// The answer is here.
    pub(super) fn answered(&mut self, ticket: Ticket) -> Option<Asker> {
        self.under_way.remove(&ticket)
    }

    /// Those who may ask now.
    pub(super) fn take_turned_away(&mut self) -> Vec<Asker> {
        std::mem::take(&mut self.turned_away)
    }
}
