//! The Receive Maximum that we announced to an MQTT 5 client: how many of its QoS 1 and 2 messages may be unanswered.
//!
//! It is counted as the client counts [MQTT-4.9.0-1]: a PUBLISH takes one, PUBACK, PUBCOMP or a refusing PUBREC gives one back, never
//! beyond the start. An answer counts once it has left, which is when its frame is synced: so the gates are kept as well.

use crate::mqtt::Reason;
use crate::types::Seq;
use std::collections::VecDeque;

/// Of one connection.
#[derive(Debug)]
pub struct ReceiveQuota {
    max: usize,
    taken: usize,
    /// Answers that wait: gate and how many, gates ascending. At most as many as are taken.
    answers: VecDeque<(Seq, usize)>,
}

impl ReceiveQuota {
    /// For the maximum that was announced.
    pub fn new(max: u16) -> Self {
        Self { max: usize::from(max), taken: 0, answers: VecDeque::new() }
    }

    /// A PUBLISH at QoS 1 or 2 came in; everything up to frame `committed` is synced.
    ///
    /// # Errors
    /// [`Reason::RECEIVE_MAXIMUM_EXCEEDED`]: the connection is to be closed with it [MQTT-3.3.4-7].
    pub fn take(&mut self, committed: Seq) -> Result<(), Reason> {
        while let Some((_, count)) = self.answers.pop_front_if(|(gate, _)| *gate <= committed) {
            self.taken = self.taken.saturating_sub(count);
        }
        if self.taken >= self.max {
            return Err(Reason::RECEIVE_MAXIMUM_EXCEEDED);
        }
        self.taken += 1;
        Ok(())
    }

    /// PUBACK, PUBCOMP or a refusing PUBREC was queued, to leave once frame `gate` is synced (0 at once). The PUBCOMP of a message
    /// from a former connection counts as well, as it does with the client.
    pub fn answered(&mut self, gate: Seq) {
        if self.answers.iter().map(|(_, count)| count).sum::<usize>() >= self.taken {
            return;
        }
        match self.answers.back_mut() {
            Some((last, count)) if *last >= gate => *count += 1,
            _ => self.answers.push_back((gate, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_than_announced_is_too_many() {
        let mut quota = ReceiveQuota::new(2);
        assert_eq!((quota.take(0), quota.take(0)), (Ok(()), Ok(())));
        assert_eq!(quota.take(0), Err(Reason::RECEIVE_MAXIMUM_EXCEEDED));
    }

    #[test]
    fn an_answer_counts_once_it_has_left() {
        let mut quota = ReceiveQuota::new(1);
        quota.take(0).unwrap();
        quota.answered(5);
        assert!(quota.take(4).is_err());
        assert!(quota.take(5).is_ok());
        quota.answered(0);
        assert!(quota.take(5).is_ok());
    }

    #[test]
    fn nothing_is_given_back_beyond_the_start() {
        let mut quota = ReceiveQuota::new(1);
        quota.answered(0);
        quota.answered(0);
        quota.take(0).unwrap();
        assert!(quota.take(0).is_err());
    }

    #[test]
    fn answers_leave_in_order_whatever_their_gates() {
        let mut quota = ReceiveQuota::new(2);
        quota.take(0).unwrap();
        quota.take(0).unwrap();
        quota.answered(9);
        quota.answered(0);
        assert!(quota.take(8).is_err(), "the second waits behind the first");
        assert!(quota.take(9).is_ok());
    }
}
