//! Questions of the admin side: the status, records of a stream, pause and resume.

use super::io::{AdminCommand, AdminReply, Output, Outputs, ReadFrom, ReadResult};
use super::reader::{LogReader, Next};
use super::reads::Asker;
use super::status::{DiskStatus, GatewayStatus, PartitionStatus, SessionsStatus, Status, StreamStatus, UpstreamStatus};
use super::{Engine, Partition};
use crate::limits::{QUESTIONS_MAX, READ_BYTES_MAX, RECORDS_PER_ANSWER_MAX};
use crate::log::record::StoredRecord;
use crate::types::{LogPosition, Now, Offset, PartitionId, Ticket};
use std::collections::BTreeMap;

/// Questions for records that are being answered.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<Ticket, Question>,
}

#[derive(Debug)]
struct Question {
    reader: LogReader,
    from: ReadFrom,
    limit: usize,
    found: Vec<StoredRecord>,
    bytes: usize,
}

impl Questions {
    /// What was read for a question.
    pub(super) fn answered(&mut self, question: Ticket, read: Ticket, result: ReadResult) {
        if let Some(question) = self.open.get_mut(&question)
            && question.reader.asked() == Some(read)
        {
            question.reader.answered(result);
        }
    }
}

impl Engine {
    pub(super) fn ask(&mut self, now: Now, ticket: Ticket, command: AdminCommand, out: &mut Outputs) {
        let body = match command {
            AdminCommand::Status => AdminReply::Status(Box::new(self.status(now))),
            AdminCommand::Pause { upstream, paused } => self.pause(now, &upstream, paused, out),
            AdminCommand::Records { stream, partition, from, limit } => {
                match self.question(&stream, partition, from, limit) {
                    Ok(question) => {
                        self.admin.open.insert(ticket, question);
                        return self.continue_question(ticket, out);
                    }
                    Err(text) => AdminReply::Refused(text),
                }
            }
        };
        out.push(Output::Reply { ticket, body });
    }

    fn question(&self, stream: &str, partition: Option<u16>, from: ReadFrom, limit: usize) -> Result<Question, String> {
        if self.admin.open.len() >= QUESTIONS_MAX {
            return Err("too many questions at once; ask again".to_owned());
        }
        let Some((id, found)) = self.streams.iter().find(|(_, candidate)| candidate.name == stream) else {
            let names: Vec<&str> = self.streams.values().map(|stream| stream.name.as_str()).collect();
            return Err(format!("there is no stream {stream}; there are {}", names.join(", ")));
        };
        let all = (0..found.partitions).map(|partition| PartitionId { stream: *id, partition });
        let wanted: Vec<PartitionId> = all.filter(|id| partition.is_none_or(|number| id.partition == number)).collect();
        if wanted.is_empty() {
            return Err(format!("stream {stream} has partitions 0 to {}", found.partitions.saturating_sub(1)));
        }
        let position = match from {
            ReadFrom::Earliest => wanted.iter().map(|id| self.log.locate(*id, self.log.start(*id))).min(),
            ReadFrom::Offset(offset) => wanted.iter().map(|id| self.log.locate(*id, offset)).min(),
            ReadFrom::Latest => Some(self.synced_end()),
            ReadFrom::Time(wall_ms) => Some(self.log.locate_time(wall_ms)),
            ReadFrom::Position(position) => Some(position),
        };
        Ok(Question {
            reader: LogReader::new(position.unwrap_or_default(), Some(wanted.into())),
            from,
            limit: limit.clamp(1, RECORDS_PER_ANSWER_MAX),
            found: Vec::new(),
            bytes: 0,
        })
    }

    /// Reads on for a question, and answers it when it has enough or the synced end is reached.
    pub(super) fn continue_question(&mut self, ticket: Ticket, out: &mut Outputs) {
        let Some(mut question) = self.admin.open.remove(&ticket) else { return };
        let until = self.log.synced_seq();
        while question.found.len() < question.limit && question.bytes < READ_BYTES_MAX {
            let reads = &mut self.reads;
            let next = question.reader.next(&self.log, until, &mut || reads.ticket(Asker::Admin(ticket)), out);
            let (frame, from) = match next {
                Next::Frame(frame, from) => (frame, from),
                Next::End => break,
                Next::Waiting => {
                    if question.reader.failed() {
                        break;
                    }
                    self.admin.open.insert(ticket, question);
                    return;
                }
            };
            let mut next = LogPosition { seq: frame.header.seq + 1, index: 0 };
            for record in frame.records_from(from).flatten() {
                if question.found.len() >= question.limit {
                    next = record.position;
                    break;
                }
                let wanted = match question.from {
                    ReadFrom::Offset(offset) => record.offset >= offset,
                    ReadFrom::Time(wall_ms) => record.ingest.wall_ms.is_none_or(|at| at >= wall_ms),
                    ReadFrom::Earliest | ReadFrom::Latest | ReadFrom::Position(_) => true,
                };
                if wanted {
                    question.bytes += record.payload.len() + record.topic.len();
                    question.found.push(record);
                }
            }
            question.reader.advance(next);
        }
        let body = if question.reader.failed() && question.found.is_empty() {
            AdminReply::Refused("the log could not be read; see the gateway's log".to_owned())
        } else {
            AdminReply::Records { records: question.found, next: question.reader.position() }
        };
        out.push(Output::Reply { ticket, body });
    }

    fn status(&self, now: Now) -> Status {
        let not_ready = self.not_ready();
        let streams = self.streams.iter().map(|(id, stream)| StreamStatus {
            name: stream.name.clone(),
            partitions: (0..stream.partitions)
                .map(|partition| self.partition_status(PartitionId { stream: *id, partition }))
                .collect(),
        });
        Status {
            gateway: GatewayStatus {
                id: self.gateway_id.clone(),
                log_id: self.log.log_id().to_string(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ready: not_ready.is_none(),
                not_ready_because: not_ready,
                epoch: self.log.epoch(),
                uptime_seconds: now.mono_ns.saturating_sub(self.started_ns) / 1_000_000_000,
            },
            streams: streams.collect(),
            upstreams: self.upstreams.iter().map(|upstream| self.upstream_status(now, upstream)).collect(),
            sessions: SessionsStatus {
                online: self.registry.online() as u64,
                offline: self.registry.offline() as u64,
                connections: self.conns.len() as u64,
                subscriptions: self.router.subscription_count() as u64,
            },
            disk: DiskStatus {
                budget_bytes: self.settings.gateway.disk_budget,
                used_bytes: self.used_bytes.max(self.bytes_in_use()),
                free_bytes: self.free_bytes.unwrap_or(0),
                segments: self.log.segments().len() as u64 + 1,
                written_bytes: self.counters.written_bytes,
                payload_bytes: self.counters.payload_bytes,
            },
            losses: self.counters.losses(),
            faults: self.faults(),
            counters: self.counters.named(|stream| stream.map_or("-", |id| self.stream_name(id)).to_owned()),
        }
    }

    fn partition_status(&self, id: PartitionId) -> PartitionStatus {
        let local = || vec!["local".to_owned()];
        let (isr, ar) = match self.partitions.get(&id) {
            Some(Partition { replicas, .. }) => {
                (replicas.isr().map(str::to_owned).collect(), replicas.assigned().map(str::to_owned).collect())
            }
            None => (local(), local()),
        };
        PartitionStatus {
            partition: id.partition,
            leo: self.log.leo(id),
            hw: self.high_watermark(id),
            start: self.log.start(id),
            synced: self.log.synced_leo(id),
            isr,
            ar,
        }
    }

    fn upstream_status(&self, now: Now, upstream: &super::forward::Upstream) -> UpstreamStatus {
        let mut status = upstream.link_status();
        for id in &upstream.partitions {
            let Some(cursor) = upstream.link.cursor(*id) else { continue };
            let end = self.log.leo(*id);
            status.cursors.insert(format!("{}/{}", self.stream_name(id.stream), id.partition), cursor);
            status.lag_records += end.saturating_sub(cursor);
            status.lag_bytes += self.log.bytes_after(*id, cursor);
            status.lag_seconds = status.lag_seconds.max(self.age_seconds(*id, cursor, now));
        }
        status
    }

    /// Age of the record at an offset, as far as it is known.
    fn age_seconds(&self, id: PartitionId, offset: Offset, now: Now) -> f64 {
        let Some(time) = self.log.ingest_time(id, offset) else { return 0.0 };
        self.age_ms(&time, now).map_or(0.0, |age_ms| age_ms as f64 / 1000.0)
    }

    /// Why publishes at acks=1 are not accepted now.
    fn not_ready(&self) -> Option<String> {
        if let Some(fault) = &self.fault {
            return Some(format!("the log cannot be written: {fault}"));
        }
        if self.full {
            return Some(match self.disk_full() {
                false => "the disk budget is reached".to_owned(),
                true => {
                    format!(
                        "no space left on the file system of {}: free some",
                        self.settings.gateway.data_dir.display()
                    )
                }
            });
        }
        (self.stopping != super::Stopping::No).then(|| "the gateway is stopping".to_owned())
    }

    fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.not_ready().into_iter().collect();
        for upstream in &self.upstreams {
            let status = upstream.link_status();
            if let Some(reason) = status.reason {
                faults.push(format!("upstream {} is {}: {reason}", status.name, status.state));
            }
        }
        faults
    }
}
