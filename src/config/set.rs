//! `--set key=value`: a path into the tree, as `gateway.disk_budget`, `stream[0].acks` or `stream.telemetry.acks`.

use super::tree::{Entry, Layer, Node, Place, Table, Value, parse_value};

/// Lists of tables of the configuration; those with a name can be addressed by it.
const LISTS: [(&str, bool); 3] = [("listener", false), ("stream", true), ("upstream", true)];

/// One step of a path: a key, or a place in a list.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Applies one `key=value` to the tree. The error is a sentence without the value, which may be a secret in the wrong place.
pub(super) fn apply(tree: &mut Table, argument: &str) -> Result<(), String> {
    let (path, raw) = argument
        .split_once('=')
        .ok_or_else(|| "expected key=value, as gateway.disk_budget=1GiB, found no \"=\"".to_owned())?;
    let path = path.trim();
    let steps = steps(path).ok_or_else(|| {
        format!("{path:?} is not a key: expected one as gateway.disk_budget, stream[0].acks or stream.telemetry.acks")
    })?;
    let place = Place::whole(Layer::Set);
    insert(tree, &steps, parse_value(raw, &Layer::Set), &place).map_err(|why| format!("{path}: {why}"))
}

fn steps(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, mut indices) = part.split_at_checked(part.find('[').unwrap_or(part.len()))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        (!key.is_empty() && key.chars().all(plain)).then_some(())?;
        steps.push(Step::Key(key.to_owned()));
        while !indices.is_empty() {
            let (index, rest) = indices.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Index(index.parse().ok()?));
            indices = rest;
        }
    }
    Some(steps)
}

fn insert(table: &mut Table, steps: &[Step], node: Node, place: &Place) -> Result<(), String> {
    let [Step::Key(key), rest @ ..] = steps else { return Err("expected a key".to_owned()) };
    if rest.is_empty() {
        table.insert(key.clone(), Entry { key: place.clone(), node });
        return Ok(());
    }
    let named = LISTS.iter().find(|(list, _)| list == key);
    let empty = || match (named, rest.first()) {
        (Some(_), _) | (_, Some(Step::Index(_))) => Value::List(Vec::new()),
        _ => Value::Table(Table::new()),
    };
    let entry = table.entry(key.clone()).or_insert_with(|| Entry {
        key: place.clone(),
        node: Node { value: empty(), place: place.clone(), raw: None },
    });
    match (&mut entry.node.value, rest) {
        (Value::Table(below), [Step::Key(_), ..]) => insert(below, rest, node, place),
        (Value::List(list), [Step::Index(index), rest @ ..]) => {
            let length = list.len();
            if *index == length {
                list.push(Node { value: Value::Table(Table::new()), place: place.clone(), raw: None });
            }
            match list.get_mut(*index) {
                Some(slot) if rest.is_empty() => {
                    *slot = node;
                    Ok(())
                }
                Some(Node { value: Value::Table(below), .. }) => insert(below, rest, node, place),
                Some(_) => Err("nothing can be set inside it: it is not a table".to_owned()),
                None => Err(format!("there are only {length} of {key:?}, counted from 0")),
            }
        }
        (Value::List(list), [Step::Key(name), rest @ ..]) if named.is_some_and(|(_, named)| *named) => {
            match list.iter_mut().find_map(|node| named_table(node, name)) {
                Some(below) if !rest.is_empty() => insert(below, rest, node, place),
                Some(_) => Err("expected a key of it".to_owned()),
                None => Err(format!("there is no {key} with the name {name:?}")),
            }
        }
        (Value::List(_), _) => Err(format!("{key:?} is a list: name one of it, as {key}[0]")),
        _ => Err(format!("nothing can be set inside {key:?}: it is neither a table nor a list")),
    }
}

fn named_table<'a>(node: &'a mut Node, name: &str) -> Option<&'a mut Table> {
    match &mut node.value {
        Value::Table(table) if table.get("name").and_then(|entry| entry.node.text()) == Some(name) => Some(table),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::parse;
    use super::*;

    fn tree() -> Table {
        let (table, errors) = parse(
            "[gateway]\nid = \"gw\"\n[[stream]]\nname = \"telemetry\"\nacks = 1\n[[stream]]\nname = \"alarms\"\n",
            &Layer::File("config.toml".into()),
        );
        assert!(errors.is_empty());
        table
    }

    fn set(argument: &str) -> Result<String, String> {
        let mut tree = tree();
        apply(&mut tree, argument)?;
        let whole = Node { value: Value::Table(tree), place: Place::default_value(), raw: None };
        Ok(whole.to_string())
    }

    #[test]
    fn a_path_leads_by_keys_places_and_names() {
        assert!(set("gateway.disk_budget=1GiB").unwrap().contains(r#"disk_budget = "1GiB""#));
        assert!(set("stream[1].acks=0").unwrap().contains(r#"{ acks = 0, name = "alarms" }"#));
        assert!(set("stream.telemetry.acks=-1").unwrap().contains(r#"{ acks = -1, name = "telemetry" }"#));
        assert!(set("auth.allow_anonymous=false").unwrap().contains("auth = { allow_anonymous = false }"));
        assert!(set("profile=x86-server").unwrap().contains(r#"profile = "x86-server""#));
        assert!(set("upstream[0].tls.ca_file=ca.pem").unwrap().contains(r#"[{ tls = { ca_file = "ca.pem" } }]"#));
        assert!(set("stream[2].topics=[\"a/#\"]").unwrap().contains(r#"{ topics = ["a/#"] }"#));
        assert!(set("stream.telemetry.topics[0]=b").unwrap().contains(r#"topics = ["b"]"#));
        assert!(set("gateway.id=a=b").unwrap().contains(r#"id = "a=b""#));
    }

    #[test]
    fn a_path_that_leads_nowhere_is_told_without_the_value() {
        for (argument, text) in [
            ("gateway", "expected key=value, as gateway.disk_budget=1GiB, found no \"=\""),
            ("stream.telemetri.acks=secret", "stream.telemetri.acks: there is no stream with the name \"telemetri\""),
            ("stream[9].acks=secret", "stream[9].acks: there are only 2 of \"stream\", counted from 0"),
            ("listener.bind=secret", "listener.bind: \"listener\" is a list: name one of it, as listener[0]"),
            ("gateway.id.x=secret", "gateway.id.x: nothing can be set inside \"id\": it is neither a table nor a list"),
        ] {
            assert_eq!(set(argument).unwrap_err(), text);
        }
        for argument in ["=1", "a..b=1", "a[x].b=1", "a[0=1", "a b=1", ".=1"] {
            let error = set(argument).unwrap_err();
            assert!(error.contains("is not a key"), "{argument}: {error}");
        }
    }
}
