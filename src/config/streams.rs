//! `[[stream]]`: durable logs and the topics that fill them.

use super::forms::{bytes, choice, flag, integer, nanoseconds, text_as, texts};
use super::overlap::{Overlap, overlap};
use super::reader::{Field, Findings, Reader, Unset};
use super::tree::{Node, Place, Value};
use crate::limits;
use crate::mqtt::topic::{depth, is_shared, valid_filter};
use crate::settings::{self, KeyRule, ReadLevel, WhenFull, valid_name};
use crate::types::Acks;

/// Names that forebay itself fills.
pub(super) const BUILT_IN: [&str; 2] = ["default", "dead-letter"];
/// Warnings about overlapping filters that are worth reading.
const OVERLAP_WARNINGS_MAX: usize = 20;

/// One `[[stream]]` as read.
pub(super) struct Stream {
    pub(super) name: Field<String>,
    pub(super) topics: Field<Vec<(String, Place)>>,
    pub(super) acks: Field<Acks>,
    pub(super) acks_min: Field<Acks>,
    pub(super) min_insync_replicas: Field<u16>,
    partitions: Field<u16>,
    key: Field<KeyRule>,
    read: Field<ReadLevel>,
    retention_bytes: Field<u64>,
    retain_unforwarded: Field<bool>,
    priority: u8,
}

impl Stream {
    /// The plain value; stand-ins where errors were reported.
    pub(super) fn settings(self) -> settings::Stream {
        settings::Stream {
            name: self.name.or(String::new()),
            topics: self.topics.or(Vec::new()).into_iter().map(|(filter, _)| filter).collect(),
            partitions: self.partitions.or(1),
            key: self.key.or(KeyRule::Topic),
            acks: self.acks.or(Acks::Synced),
            acks_min: self.acks_min.or(Acks::Queued),
            min_insync_replicas: self.min_insync_replicas.or(1),
            read: self.read.or(ReadLevel::Synced),
            retention_bytes: self.retention_bytes.value,
            retention_age_ns: None,
            retain_unforwarded: self.retain_unforwarded.or(true),
            when_full: WhenFull::Refuse,
            lz4: false,
            priority: self.priority,
        }
    }
}

pub(super) fn streams(root: &mut Reader<'_>) -> Vec<Stream> {
    let mut streams = Vec::new();
    for (path, place, table) in root.tables("stream", limits::STREAMS_MAX) {
        let mut reader = Reader::new(root.findings, path, place, table);
        streams.push(stream(&mut reader));
        reader.finish();
    }
    unique_names(root.findings, &streams);
    overlaps(root.findings, &streams);
    streams
}

/// 0, 1 or -1.
fn acks(node: &Node) -> Result<Acks, String> {
    let acks = match node.value {
        Value::Integer(number) => Acks::from_number(number),
        _ => None,
    };
    acks.ok_or_else(|| "0, 1 or -1".to_owned())
}

fn key_rule(text: &str) -> Option<KeyRule> {
    match text {
        "topic" => Some(KeyRule::Topic),
        "client" => Some(KeyRule::Client),
        _ => {
            let level: u16 = text.strip_prefix("level:")?.parse().ok()?;
            (1..=limits::TOPIC_LEVELS_MAX).contains(&usize::from(level)).then_some(KeyRule::Level(level))
        }
    }
}

fn stream(reader: &mut Reader<'_>) -> Stream {
    let name =
        text_as("a name of a-z, 0-9, \"_\" and \"-\", at most 64", |text| valid_name(text).then(|| text.to_owned()));
    let name = reader.get("name", Unset::Required("a name, as \"telemetry\""), name);
    if let Some(built_in) = name.value.as_deref().filter(|name| BUILT_IN.contains(name)) {
        let message =
            format!("{built_in:?} is built in and cannot be configured in this version yet: choose another name");
        reader.findings.error(&name.place, &name.path, message);
    }
    let topics = reader.get(
        "topics",
        Unset::Required("a list of topic filters, as [\"sensors/#\"]"),
        texts("topic filters, as [\"sensors/#\"]"),
    );
    for (index, (filter, place)) in topics.value.iter().flatten().enumerate() {
        if let Err(message) = check_filter(filter) {
            reader.findings.error(place, format!("{}[{index}]", topics.path), message);
        }
    }
    let levels = [("synced", ReadLevel::Synced), ("committed", ReadLevel::Committed)];
    let stream = Stream {
        name,
        topics,
        partitions: reader.get("partitions", Unset::Default("1"), integer(1..=limits::PARTITIONS_MAX)),
        key: reader.get(
            "key",
            Unset::Default("\"topic\""),
            text_as("\"topic\", \"client\" or \"level:N\" with N from 1 to 128", key_rule),
        ),
        acks: reader.get("acks", Unset::Default("1"), acks),
        acks_min: reader.get("acks_min", Unset::Default("0"), acks),
        min_insync_replicas: reader.get(
            "min_insync_replicas",
            Unset::Default("1"),
            integer(1..=u16::try_from(limits::UPSTREAMS_MAX + 1).unwrap_or(u16::MAX)),
        ),
        read: reader.get("read", Unset::Default("\"synced\""), choice(&levels)),
        retention_bytes: reader.get("retention_bytes", Unset::Absent, bytes(1..=u64::MAX)),
        retain_unforwarded: reader.get("retain_unforwarded", Unset::Default("true"), flag),
        priority: 4,
    };
    let full =
        reader.get("when_full", Unset::Default("\"refuse\""), choice(&[("refuse", true), ("drop-oldest", false)]));
    if full.value == Some(false) {
        let message = "\"drop-oldest\" is not available in this version yet: use \"refuse\", publishes then get 0x97";
        reader.findings.error(&full.place, &full.path, message);
    }
    reader.later("retention_age", None, nanoseconds(1..=u64::MAX));
    reader.later("compression", Some("\"none\""), choice(&[("none", ()), ("lz4", ())]));
    reader.later("priority", Some("4"), integer(0..=9_u16));
    reader.later("store", None, choice(&[("always", ()), ("wanted", ())]));
    if let (Some(least), Some(level)) = (stream.acks_min.value, stream.acks.value)
        && rank(least) > rank(level)
    {
        let message =
            format!("{} is more than acks = {}: every publish would be raised", least.number(), level.number());
        reader.findings.error(&stream.acks_min.place, &stream.acks_min.path, message);
    }
    stream
}

/// Levels by what they promise.
fn rank(acks: Acks) -> u8 {
    match acks {
        Acks::Queued => 0,
        Acks::Synced => 1,
        Acks::Replicated => 2,
    }
}

fn check_filter(filter: &str) -> Result<(), String> {
    let bytes = filter.as_bytes();
    if is_shared(bytes) {
        return Err(format!("expected a plain topic filter, found the shared one {filter:?}: streams have no groups"));
    }
    if filter.starts_with('$') {
        return Err(format!(
            "expected a filter that does not begin with \"$\", found {filter:?}: such topics are not stored"
        ));
    }
    if !valid_filter(bytes) {
        return Err(format!(
            "expected a topic filter with \"+\" and \"#\" only as whole levels and \"#\" last, found {filter:?}"
        ));
    }
    if depth(bytes) > limits::TOPIC_LEVELS_MAX {
        return Err(format!("expected at most {} levels, found {}", limits::TOPIC_LEVELS_MAX, depth(bytes)));
    }
    Ok(())
}

fn unique_names(findings: &mut Findings, streams: &[Stream]) {
    for (index, stream) in streams.iter().enumerate() {
        let same = |earlier: &&Stream| stream.name.value.is_some() && earlier.name.value == stream.name.value;
        if let Some(earlier) = streams.iter().take(index).find(same) {
            let message = format!("expected a name of its own, found that of {} again", earlier.name.path);
            findings.error(&stream.name.place, &stream.name.path, message);
        }
    }
}

/// Warns where a stream gets less than its filters say, since an earlier one stores first.
fn overlaps(findings: &mut Findings, streams: &[Stream]) {
    let filters: Vec<(usize, String, &str, &Place)> = streams
        .iter()
        .enumerate()
        .flat_map(|(stream, read)| {
            let topics = read.topics.value.iter().flatten().enumerate();
            topics.map(move |(index, (filter, place))| {
                (stream, format!("{}[{index}]", read.topics.path), filter.as_str(), place)
            })
        })
        .collect();
    if let Some((_, path, _, place)) = filters.get(limits::STREAM_FILTERS_MAX) {
        let message = format!("expected at most {} filters in all streams", limits::STREAM_FILTERS_MAX);
        return findings.error(place, path, message);
    }
    let mut warnings = 0;
    for (at, (stream, path, filter, place)) in filters.iter().enumerate() {
        for (earlier, earlier_path, earlier_filter, _) in filters.iter().take(at) {
            let overlap = if earlier == stream { Overlap::None } else { overlap(earlier_filter, filter) };
            let message = match overlap {
                Overlap::None => continue,
                Overlap::Some => format!(
                    "{filter:?} overlaps with {earlier_filter:?} ({earlier_path}): what matches both goes to the earlier stream"
                ),
                Overlap::Covered => format!(
                    "{filter:?} never receives anything: {earlier_filter:?} ({earlier_path}) comes first and matches all of it"
                ),
            };
            warnings += 1;
            if warnings <= OVERLAP_WARNINGS_MAX {
                findings.warn(place, path, &message);
            }
        }
    }
    if warnings > OVERLAP_WARNINGS_MAX {
        findings.warnings.push(format!("{} more pairs of stream filters overlap", warnings - OVERLAP_WARNINGS_MAX));
    }
}
