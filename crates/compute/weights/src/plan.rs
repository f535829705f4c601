//! How names on disk map to the canonical names that models are written with.

use crate::{Checkpoint, Error, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// A pattern or name of a rule, usually a constant.
pub type Text = Cow<'static, str>;

/// One step of a [`KeyPlan`].
///
/// Patterns are literal but for `{n}` (one or more digits) and `{}` (anything, also nothing); the right-hand side repeats
/// the placeholders in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// Removes a prefix wherever a name has it.
    StripPrefix(Text),
    /// Renames what matches the whole pattern.
    Rename(Text, Text),
    /// Splits the rows of a fused tensor equally, in this order. A stack of as many matrices becomes the matrices.
    SplitRows(Text, Vec<Text>),
    /// Drops trailing dimensions of size 1: a 1x1 convolution that is a linear layer.
    Squeeze(Text),
    /// Ignores what matches.
    Drop(Text),
}

impl Rule {
    /// A [`Rule::StripPrefix`].
    pub fn strip(prefix: impl Into<Text>) -> Self {
        Self::StripPrefix(prefix.into())
    }

    /// A [`Rule::Rename`].
    pub fn rename(from: impl Into<Text>, to: impl Into<Text>) -> Self {
        Self::Rename(from.into(), to.into())
    }

    /// A [`Rule::SplitRows`].
    pub fn split(from: impl Into<Text>, to: impl IntoIterator<Item = &'static str>) -> Self {
        Self::SplitRows(from.into(), to.into_iter().map(Text::Borrowed).collect())
    }

    /// A [`Rule::Squeeze`].
    pub fn squeeze(pattern: impl Into<Text>) -> Self {
        Self::Squeeze(pattern.into())
    }

    /// A [`Rule::Drop`].
    pub fn drop(pattern: impl Into<Text>) -> Self {
        Self::Drop(pattern.into())
    }
}

/// Where a canonical tensor comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name on disk.
    pub stored: String,
    /// Rows of the stored tensor's first dimension.
    pub rows: Range<usize>,
    /// Canonical shape.
    pub shape: Vec<usize>,
}

/// Canonical names with their sources.
pub type Resolved = BTreeMap<String, Source>;

/// Ordered rules from names on disk to canonical names. Each tensor goes through all rules in order; what no rule
/// touches keeps its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPlan {
    rules: Vec<Rule>,
    /// What names must start with to be looked at.
    within: Text,
}

impl KeyPlan {
    /// The plan for a checkpoint whose names are canonical.
    pub fn identity() -> Self {
        Self::default()
    }

    /// A plan of these rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect(), within: Text::default() }
    }

    /// Adds rules at the end.
    #[must_use]
    pub fn then(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules.extend(rules);
        self
    }

    /// The same plan for one component of a file that bundles several: only names that start with `prefix` count, and
    /// the rules see them without it.
    #[must_use]
    pub fn within(mut self, prefix: impl Into<Text>) -> Self {
        self.within = prefix.into();
        self
    }

    /// The canonical names that `checkpoint` gives.
    ///
    /// # Errors
    /// A fused tensor's rows can't be split, or two tensors get the same canonical name.
    pub fn resolve(&self, checkpoint: &Checkpoint) -> Result<Resolved> {
        let mut resolved = Resolved::new();
        for info in checkpoint.tensors() {
            let Some(name) = info.name.strip_prefix(&*self.within) else { continue };
            let rows = 0..info.shape.first().copied().unwrap_or(1);
            let start = Source { stored: info.name.clone(), rows, shape: info.shape.clone() };
            let mut items = vec![(name.to_owned(), start)];
            for rule in &self.rules {
                items = apply(rule, items)
                    .map_err(|message| Error::tensor(checkpoint.file_of(info), &info.name, message))?;
            }
            for (name, source) in items {
                if let Some(earlier) = resolved.insert(name.clone(), source) {
                    let message = format!("and {} both mean '{name}'; the file mixes two layouts", earlier.stored);
                    return Err(Error::tensor(checkpoint.file_of(info), &info.name, message));
                }
            }
        }
        Ok(resolved)
    }
}

fn apply(rule: &Rule, items: Vec<(String, Source)>) -> Result<Vec<(String, Source)>, String> {
    let mut out = Vec::with_capacity(items.len());
    for (name, mut source) in items {
        match rule {
            Rule::StripPrefix(prefix) => {
                let name = name.strip_prefix(&**prefix).map_or_else(|| name.clone(), str::to_owned);
                out.push((name, source));
            }
            Rule::Rename(from, to) => {
                let name = captures(from, &name).map_or_else(|| name.clone(), |parts| substitute(to, &parts));
                out.push((name, source));
            }
            Rule::SplitRows(from, to) => match captures(from, &name) {
                None => out.push((name, source)),
                Some(parts) => {
                    let rows = source.rows.len();
                    if to.is_empty() || rows % to.len() != 0 {
                        return Err(format!("its {rows} rows can't be split into {} equal parts", to.len()));
                    }
                    let each = rows / to.len();
                    for (index, to) in to.iter().enumerate() {
                        let start = source.rows.start + index * each;
                        let mut shape = source.shape.clone();
                        if let Some(first) = shape.first_mut() {
                            *first = each;
                        }
                        let mut rows = start..start + each;
                        if each == 1 && shape.len() == 3 {
                            // One matrix of a stack.
                            shape.remove(0);
                            rows = start * shape[0]..(start + 1) * shape[0];
                        }
                        let part = Source { stored: source.stored.clone(), rows, shape };
                        out.push((substitute(to, &parts), part));
                    }
                }
            },
            Rule::Squeeze(pattern) => {
                if captures(pattern, &name).is_some() {
                    while source.shape.len() > 2 && source.shape.last() == Some(&1) {
                        source.shape.pop();
                    }
                }
                out.push((name, source));
            }
            Rule::Drop(pattern) => {
                if captures(pattern, &name).is_none() {
                    out.push((name, source));
                }
            }
        }
    }
    Ok(out)
}

/// What the placeholders of `pattern` stand for if it matches all of `name`. `{}` takes as little as it can.
fn captures<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let Some(open) = pattern.find('{') else {
        return (pattern == name).then(Vec::new);
    };
    let close = open + pattern[open..].find('}')?;
    let (literal, kind, rest) = (&pattern[..open], &pattern[open + 1..close], &pattern[close + 1..]);
    let name = name.strip_prefix(literal)?;
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let mut ends: Box<dyn Iterator<Item = usize>> = match kind {
        "n" => Box::new((digits > 0).then_some(digits).into_iter()),
        _ => Box::new((0..=name.len()).filter(|end| name.is_char_boundary(*end))),
    };
    ends.find_map(|end| {
        let mut parts = captures(rest, &name[end..])?;
        parts.insert(0, &name[..end]);
        Some(parts)
    })
}

fn substitute(pattern: &str, parts: &[&str]) -> String {
    let mut out = String::new();
    let (mut rest, mut parts) = (pattern, parts.iter());
    while let Some((literal, tail)) = rest.split_once('{') {
        out.push_str(literal);
        out.push_str(parts.next().copied().unwrap_or(""));
        rest = tail.split_once('}').map_or("", |(_, after)| after);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_capture_and_substitute() {
        assert_eq!(captures("layers.{n}.attn.{}", "layers.12.attn.q.weight"), Some(vec!["12", "q.weight"]));
        assert_eq!(captures("layers.{n}.attn", "layers.x.attn"), None);
        assert_eq!(captures("{}.qkv.weight", "a.b.qkv.weight"), Some(vec!["a.b"]));
        assert_eq!(substitute("blocks.{n}.{}", &["3", "w"]), "blocks.3.w");
    }
}
