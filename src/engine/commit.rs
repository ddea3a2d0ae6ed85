//! What a commit sets free: durable deliveries, the high watermark and the answers that wait for it, held publishers.

use super::deliver::Reading;
use super::forward::control_record;
use super::io::{Event, Output, Outputs, Severity};
use super::{Engine, Session};
use crate::log::segments::SegmentSummary;
use crate::mqtt::{Reason, Version};
use crate::types::{Now, Offset, PartitionId, Seq, UpstreamId};

impl Engine {
    /// Everything up to `seq` is synced.
    pub(super) fn committed(&mut self, now: Now, seq: Seq, sealed: Vec<SegmentSummary>, out: &mut Outputs) {
        if let Some(fault) = self.fault.take() {
            self.conditions += 1;
            self.event(out, Severity::Info, "log", format!("the log can be written again (it failed with: {fault})"));
        }
        let rolled = !sealed.is_empty();
        self.log.committed(seq, sealed);
        self.commit_waits_since = (self.log.last_seq() > seq).then_some(now.mono_ns);
        self.counters.commits += 1;
        for index in 0..self.replicated.len() {
            let Some(id) = self.replicated.get(index).copied() else { break };
            let synced = self.log.synced_leo(id);
            if let Some(partition) = self.partitions.get_mut(&id) {
                partition.replicas.synced(seq);
                partition.replicas.local_synced(now.mono_ns, synced);
            }
            self.high_watermark_moved(now, id, out);
        }
        self.push_synced(seq, out);
        self.links_synced(now, out);
        if rolled {
            self.space_due = true;
        }
        if let Some((stamp, changes)) = self.log.take_changes() {
            out.push(Output::Apply { stamp, changes });
        }
    }

    /// The log cannot be written: nothing is acknowledged until it can be.
    pub(super) fn commit_failed(&mut self, error: String, out: &mut Outputs) {
        if self.fault.as_ref() != Some(&error) {
            self.event(
                out,
                Severity::Error,
                "log",
                format!("{error}; nothing is acknowledged until it can be written"),
            );
        }
        self.fault = Some(error);
    }

    /// Offset below which a partition is replicated as asked for; the synced end where nothing replicates it.
    pub(super) fn high_watermark(&self, id: PartitionId) -> Offset {
        match self.partitions.get(&id) {
            Some(partition) => partition.replicas.high_watermark(),
            None => self.log.synced_leo(id),
        }
    }

    /// An upstream that is a replica has everything of this partition below `offset`.
    pub(super) fn replica_reached(
        &mut self,
        now: Now,
        upstream: UpstreamId,
        id: PartitionId,
        offset: Offset,
        out: &mut Outputs,
    ) {
        let (Some(partition), Some(upstream)) =
            (self.partitions.get_mut(&id), self.upstreams.get(usize::from(upstream.0)))
        else {
            return;
        };
        partition.replicas.replica_reached(now.mono_ns, &upstream.name, offset);
        self.high_watermark_moved(now, id, out);
    }

    /// Records a change of the ISR, then answers what waits below the high watermark.
    pub(super) fn high_watermark_moved(&mut self, now: Now, id: PartitionId, out: &mut Outputs) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if let Some(change) = partition.replicas.tick(now.mono_ns) {
            let seq = self.log.control(control_record(change));
            partition.replicas.recorded(seq);
        }
        let members = partition.replicas.in_sync();
        if std::mem::replace(&mut partition.in_sync, members) != members {
            self.conditions += 1;
            let isr: Vec<&str> = partition.replicas.isr().collect();
            let text = format!(
                "{}/{}: in sync are now {}",
                self.streams.get(&id.stream).map_or("-", |stream| stream.name.as_str()),
                id.partition,
                isr.join(", ")
            );
            self.event(out, Severity::Info, "replication", text);
        }
        // For -1 the minimum is never less than two, whatever the stream says.
        let high = self.partitions.get(&id).filter(|p| p.replicas.enough()).map_or(0, |p| p.replicas.high_watermark());
        while let Some(waiting) = self
            .partitions
            .get_mut(&id)
            .and_then(|partition| partition.waiting.pop_front_if(|waiting| waiting.offset < high))
        {
            self.answer_waiting(id, waiting, Reason::SUCCESS, out);
        }
        self.wake_all_behind();
    }

    /// Sessions that wait for the high watermark may go on.
    fn wake_all_behind(&mut self) {
        if !self.any_committed_read {
            return;
        }
        let behind = |session: &Session| session.conn.is_some() && matches!(session.reading, Reading::Behind(_));
        let ids: Vec<_> = self.sessions.iter().filter(|(_, session)| behind(session)).map(|(id, _)| *id).collect();
        for id in ids {
            self.make_runnable(id);
        }
    }

    /// A record that its replica refused for good does not pass its LEO for acks: its publisher is told, or closed where the version
    /// has no code for it. Sent again, it is a new record.
    pub(super) fn replica_refused(&mut self, id: PartitionId, offset: Offset, out: &mut Outputs) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(index) = partition.waiting.iter().position(|waiting| waiting.own && waiting.offset == offset) else {
            return;
        };
        let Some(waiting) = partition.waiting.remove(index) else { return };
        if let Some((conn, version)) = self.conn_of(waiting.session)
            && version != Version::V5
        {
            self.close(conn, "the replica refused a record", out);
        }
        self.answer_waiting(id, waiting, Reason::IMPLEMENTATION_SPECIFIC, out);
    }

    /// Connections whose answers have waited longer than `ack_timeout` are closed without them.
    pub(super) fn check_ack_timeouts(&mut self, now: Now, out: &mut Outputs) {
        let timeout_ns = self.settings.gateway.ack_timeout_ns;
        let mut late = Vec::new();
        let too_old = |since_ns: u64| now.mono_ns.saturating_sub(since_ns) > timeout_ns;
        for partition in self.partitions.values() {
            // In the order of their appends, so the oldest stand first; one whose client is gone waits on for a DUP.
            for waiting in partition.waiting.iter().take_while(|waiting| too_old(waiting.since_ns)) {
                let Some(session) = self.sessions.get(&waiting.session) else { continue };
                late.extend(session.conn.filter(|_| session.inbound.oldest_wait_ns().is_some_and(too_old)));
            }
        }
        let synced = self.log.synced_seq();
        if self.commit_waits_since.is_some_and(too_old) {
            late.extend(self.conns.iter().filter(|(_, state)| state.last_gate > synced).map(|(conn, _)| *conn));
        }
        for (conn, state) in &self.conns {
            if state.held.is_some_and(|held| held.gives_up) && state.held_since_ns.is_some_and(too_old) {
                late.push(*conn);
            }
        }
        late.sort_unstable();
        late.dedup();
        for conn in late {
            self.close(conn, "no acknowledgement within ack_timeout", out);
        }
    }

    /// Lets held connections go on once something has changed; each publish is checked again when it comes.
    pub(super) fn release_held(&mut self, out: &mut Outputs) {
        if self.memory_full && self.log.uncommitted_bytes() < self.bounds.uncommitted_bytes / 2 {
            self.memory_full = false;
            self.conditions += 1;
        }
        let conditions = self.conditions;
        for _ in 0..self.held.len() {
            let Some(conn) = self.held.pop_front() else { break };
            let Some(state) = self.conns.get_mut(&conn) else { continue };
            match state.held {
                Some(held) if held.conditions == conditions => self.held.push_back(conn),
                Some(_) => {
                    state.held = None;
                    out.push(Output::Release { conn });
                }
                None => {}
            }
        }
    }

    pub(super) fn event(&self, out: &mut Outputs, severity: Severity, part: &'static str, text: String) {
        out.push(Output::Event(Event { severity, part, text }));
    }
}
