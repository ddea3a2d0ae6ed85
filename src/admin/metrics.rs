//! `/metrics`: the status, the measures and the process as Prometheus reads them (OpenMetrics text).
//!
//! Nothing is counted twice: the engine's status is asked for at each scrape and written out, so a metric cannot disagree with
//! `forebay status`.

use super::measures::{Measures, Snapshot};
use super::process::Process;
use crate::engine::status::{PartitionStatus, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::Error;

/// The content type of the answer.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of one sample.
type Labels<'a> = Vec<(&'static str, String)>;

/// The whole answer.
pub fn render(status: Status, measures: &Measures, process: Process) -> Result<String, Error> {
    let histograms = Histograms {
        ack_seconds: measures.ack_micros.each_ref().map(|histogram| histogram.snapshot()),
        commit_seconds: measures.commit_micros.snapshot(),
        commit_records: measures.commit_records.snapshot(),
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { status, histograms, process }));
    let mut text = String::with_capacity(16 << 10);
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Histograms {
    ack_seconds: [Snapshot; 3],
    commit_seconds: Snapshot,
    commit_records: Snapshot,
}

#[derive(Debug)]
struct Scrape {
    status: Status,
    histograms: Histograms,
    process: Process,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = Writer { encoder };
        self.messages(&mut out)?;
        self.partitions(&mut out)?;
        self.commits(&mut out)?;
        self.upstreams(&mut out)?;
        self.sessions(&mut out)?;
        self.process(&mut out)
    }
}

impl Scrape {
    fn messages(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let counters = &self.status.counters;
        let received = counters.publish_received.iter();
        out.counters(
            "forebay_publish_received",
            "PUBLISH packets received",
            received.map(|(key, n)| (pair(["qos", "stream"], key), *n)),
        )?;
        let acks = counters.acks.iter();
        out.counters(
            "forebay_acks",
            "Acknowledgements sent to publishers",
            acks.map(|(key, n)| (pair(["level", "reason"], key), *n)),
        )?;
        let lost = counters.lost.iter();
        out.counters(
            "forebay_lost",
            "Records lost, by cause",
            lost.map(|(key, n)| (pair(["stream", "cause"], key), *n)),
        )?;
        out.counter("forebay_delivered", "Messages sent to subscribers", counters.delivered)?;
        let levels = ["0", "1", "-1"].into_iter().zip(&self.histograms.ack_seconds);
        out.histograms(
            "forebay_ack_seconds",
            "From a PUBLISH's arrival to its acknowledgement",
            levels.map(|(level, snapshot)| (vec![("level", level.to_owned())], snapshot)),
        )
    }

    fn partitions(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let each = |value: fn(&PartitionStatus) -> f64| {
            self.status.streams.iter().flat_map(move |stream| {
                stream.partitions.iter().map(move |partition| {
                    let labels = vec![("stream", stream.name.clone()), ("partition", partition.partition.to_string())];
                    (labels, value(partition))
                })
            })
        };
        out.gauges("forebay_log_end_offset", "Next offset to be written", each(|partition| partition.leo as f64))?;
        out.gauges("forebay_log_start_offset", "First offset that is there", each(|partition| partition.start as f64))?;
        out.gauges(
            "forebay_high_watermark",
            "Smallest log end offset among the in-sync replicas",
            each(|partition| partition.hw as f64),
        )?;
        out.gauges(
            "forebay_isr_size",
            "In-sync replicas, the local log included",
            each(|partition| partition.isr.len() as f64),
        )
    }

    fn commits(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let disk = &self.status.disk;
        let none = Vec::new;
        out.histograms(
            "forebay_commit_seconds",
            "Write and sync of one commit",
            [(none(), &self.histograms.commit_seconds)].into_iter(),
        )?;
        out.histograms(
            "forebay_commit_records",
            "Records of one commit",
            [(none(), &self.histograms.commit_records)].into_iter(),
        )?;
        let kinds = [("used", disk.used_bytes), ("budget", disk.budget_bytes), ("free", disk.free_bytes)];
        out.gauges(
            "forebay_disk_bytes",
            "What data_dir takes and may take, and what is free on its file system",
            kinds.into_iter().map(|(kind, bytes)| (vec![("kind", kind.to_owned())], bytes as f64)),
        )?;
        out.counter("forebay_disk_written_bytes", "Bytes written to the log", disk.written_bytes)?;
        out.counter("forebay_payload_bytes", "Payload bytes accepted into the log", disk.payload_bytes)
    }

    /// Lag in records is known per partition; bytes and seconds are those of the whole upstream.
    fn upstreams(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let upstreams = || self.status.upstreams.iter();
        let label = |name: &String| vec![("upstream", name.clone())];
        let lags = upstreams().flat_map(|upstream| {
            upstream.cursors.iter().filter_map(|(place, cursor)| {
                let (stream, number) = place.rsplit_once('/')?;
                let partition = self.partition(stream, number)?;
                let labels = vec![
                    ("upstream", upstream.name.clone()),
                    ("stream", stream.to_owned()),
                    ("partition", number.to_owned()),
                ];
                Some((labels, partition.leo.saturating_sub(*cursor) as f64))
            })
        });
        out.gauges("forebay_upstream_lag_records", "Records between the upstream's cursor and the log's end", lags)?;
        let bytes = upstreams().map(|upstream| (label(&upstream.name), upstream.lag_bytes as f64));
        out.gauges("forebay_upstream_lag_bytes", "Their bytes, about", bytes)?;
        let seconds = upstreams().map(|upstream| (label(&upstream.name), upstream.lag_seconds));
        out.gauges("forebay_upstream_lag_seconds", "Age of the oldest of them", seconds)?;
        let connected = upstreams().map(|upstream| (label(&upstream.name), f64::from(upstream.state == "connected")));
        out.gauges("forebay_upstream_connected", "1 while the upstream is connected", connected)?;
        let sent = upstreams().map(|upstream| (label(&upstream.name), upstream.sent_bytes));
        out.counters("forebay_upstream_sent_bytes", "Bytes sent to the upstream", sent)?;
        let records = upstreams().map(|upstream| (label(&upstream.name), upstream.forwarded_records));
        out.counters("forebay_upstream_forwarded_records", "Records that the upstream acknowledged", records)?;
        let refused = upstreams().map(|upstream| (label(&upstream.name), upstream.refused_records));
        out.counters("forebay_upstream_refused_records", "Records that the upstream refused for good", refused)
    }

    fn partition(&self, stream: &str, number: &str) -> Option<&PartitionStatus> {
        let number: u16 = number.parse().ok()?;
        let stream = self.status.streams.iter().find(|candidate| candidate.name == stream)?;
        stream.partitions.iter().find(|partition| partition.partition == number)
    }

    fn sessions(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let sessions = &self.status.sessions;
        out.gauge("forebay_connections", "Open connections", Some(sessions.connections as f64))?;
        let states = [("online", sessions.online), ("offline", sessions.offline)];
        let states = states.into_iter().map(|(state, n)| (vec![("state", state.to_owned())], n as f64));
        out.gauges("forebay_sessions", "Sessions with and without a connection", states)?;
        out.gauge("forebay_subscriptions", "Subscriptions in all", Some(sessions.subscriptions as f64))?;
        let ready = f64::from(self.status.gateway.ready);
        out.gauge("forebay_ready", "1 while publishes at acks=1 are accepted", Some(ready))?;
        let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        out.gauges("forebay_build_info", "Version of the program", [(build, 1.0)].into_iter())
    }

    fn process(&self, out: &mut Writer<'_>) -> Result<(), Error> {
        let Process { cpu_seconds, resident_bytes, virtual_bytes, threads, start_seconds, open_fds, max_fds } =
            self.process;
        let number = |value: Option<u64>| value.map(|value| value as f64);
        if let Some(seconds) = cpu_seconds {
            out.counter("process_cpu_seconds", "User and system time", seconds)?;
        }
        out.gauge("process_resident_memory_bytes", "Resident memory", number(resident_bytes))?;
        out.gauge("process_virtual_memory_bytes", "Virtual memory", number(virtual_bytes))?;
        out.gauge("process_threads", "Threads", number(threads))?;
        out.gauge("process_start_time_seconds", "Start of the process since 1970", start_seconds)?;
        out.gauge("process_open_fds", "Open file descriptors", number(open_fds))?;
        out.gauge("process_max_fds", "File descriptors that may be open", number(max_fds))
    }
}

/// `a,b` under two names. Stream names hold no comma, so the first one is the separator.
fn pair(names: [&'static str; 2], key: &str) -> Labels<'static> {
    let (first, second) = key.split_once(',').unwrap_or((key, ""));
    names.into_iter().zip([first.to_owned(), second.to_owned()]).collect()
}

struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Writer<'_> {
    /// One family: a description, then each sample. Nothing at all where there is no sample.
    fn family<V>(
        &mut self,
        (name, help): (&str, &str),
        kind: MetricType,
        samples: impl Iterator<Item = (Labels<'static>, V)>,
        each: impl Fn(MetricEncoder<'_>, V) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            each(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Labels<'static>, u64)>,
    ) -> Result<(), Error> {
        self.family((name, help), MetricType::Counter, samples, |mut sample, value| {
            sample.encode_counter::<NoLabelSet, u64, u64>(&value, None)
        })
    }

    fn counter<V>(&mut self, name: &str, help: &str, value: V) -> Result<(), Error>
    where
        V: prometheus_client::encoding::EncodeCounterValue,
    {
        let mut sample = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        sample.encode_counter::<NoLabelSet, V, u64>(&value, None)
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Labels<'static>, f64)>,
    ) -> Result<(), Error> {
        self.family((name, help), MetricType::Gauge, samples, |mut sample, value| sample.encode_gauge(&value))
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> Result<(), Error> {
        match value {
            Some(value) => self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value),
            None => Ok(()),
        }
    }

    fn histograms<'s>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Labels<'static>, &'s Snapshot)>,
    ) -> Result<(), Error> {
        self.family((name, help), MetricType::Histogram, samples, |mut sample, snapshot| {
            sample.encode_histogram::<NoLabelSet>(snapshot.sum, snapshot.count, &snapshot.buckets, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::status::{StreamStatus, UpstreamStatus};
    use crate::types::Acks;

    fn status() -> Status {
        let partition = PartitionStatus {
            leo: 120,
            hw: 100,
            start: 5,
            isr: vec!["local".into(), "dc".into()],
            ..Default::default()
        };
        let mut status = Status {
            streams: vec![StreamStatus { name: "telemetry".into(), partitions: vec![partition] }],
            upstreams: vec![UpstreamStatus {
                name: "dc".into(),
                state: "connected".into(),
                lag_seconds: 1.5,
                sent_bytes: 77,
                cursors: [("telemetry/0".to_owned(), 90)].into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        status.counters.publish_received.insert("1,telemetry".into(), 120);
        status.counters.acks.insert("1,success".into(), 119);
        status.counters.lost.insert("telemetry,retention".into(), 5);
        status.sessions.online = 3;
        status
    }

    #[test]
    fn the_first_set_is_there_with_its_labels() {
        let measures = Measures::default();
        measures.acked(Acks::Synced, 900, 2);
        measures.committed(800, 2);
        let text = render(status(), &measures, Process::read()).unwrap();
        let expected = [
            "forebay_publish_received_total{qos=\"1\",stream=\"telemetry\"} 120",
            "forebay_acks_total{level=\"1\",reason=\"success\"} 119",
            "forebay_lost_total{stream=\"telemetry\",cause=\"retention\"} 5",
            "forebay_log_end_offset{stream=\"telemetry\",partition=\"0\"} 120",
            "forebay_high_watermark{stream=\"telemetry\",partition=\"0\"} 100",
            "forebay_isr_size{stream=\"telemetry\",partition=\"0\"} 2",
            "forebay_ack_seconds_bucket{le=\"0.001\",level=\"1\"} 2",
            "forebay_ack_seconds_count{level=\"-1\"} 0",
            "forebay_commit_seconds_bucket{le=\"+Inf\"} 1",
            "forebay_commit_records_sum 2.0",
            "forebay_disk_bytes{kind=\"budget\"} 0",
            "forebay_upstream_lag_records{upstream=\"dc\",stream=\"telemetry\",partition=\"0\"} 30",
            "forebay_upstream_lag_seconds{upstream=\"dc\"} 1.5",
            "forebay_upstream_connected{upstream=\"dc\"} 1",
            "forebay_upstream_sent_bytes_total{upstream=\"dc\"} 77",
            "forebay_sessions{state=\"online\"} 3",
            "forebay_build_info{version=",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
        ];
        for line in expected {
            assert!(text.lines().any(|candidate| candidate.starts_with(line)), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_gateway_without_upstreams_and_messages_scrapes_too() {
        let text = render(Status::default(), &Measures::default(), Process::default()).unwrap();
        assert!(!text.contains("forebay_upstream_lag") && text.ends_with("# EOF\n"));
    }
}
