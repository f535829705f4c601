//! Guessing the next tokens from what was said before (prompt lookup; Saxena 2023), to check several in one pass.
//!
//! A guess costs time only: each token is still chosen from the model's own logits, which are the same bit for bit, and the
//! first one that was guessed wrong ends the guess.

/// Tokens that must agree before a guess is made.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;
/// Tokens that are guessed at once.
const MOST: usize = 8;

/// What was said, and how well guesses went.
pub(crate) struct Lookup {
    tokens: Vec<u32>,
    /// Tokens of the next guess; grows and shrinks with success.
    length: usize,
    /// Steps to let pass after guesses that failed.
    rest: usize,
    failures: usize,
}

impl Lookup {
    pub(crate) fn new(prompt: &[u32]) -> Self {
        Self { tokens: prompt.to_vec(), length: 2, rest: 0, failures: 0 }
    }

    /// Adds a token and guesses what follows it, perhaps nothing.
    pub(crate) fn guess(&mut self, token: u32) -> Vec<u32> {
        self.tokens.push(token);
        if self.rest > 0 {
            self.rest -= 1;
            return Vec::new();
        }
        for length in (SHORTEST..=LONGEST).rev() {
            let Some(start) = self.tokens.len().checked_sub(length) else { continue };
            let (before, end) = (&self.tokens[..self.tokens.len() - 1], &self.tokens[start..]);
            // The latest place where the same was said.
            if let Some(at) = before.windows(length).rposition(|window| window == end) {
                let after = at + length;
                return self.tokens[after..(after + self.length).min(self.tokens.len())].to_vec();
            }
        }
        Vec::new()
    }

    /// Notes how many tokens of a guess were right; they were said.
    pub(crate) fn learn(&mut self, guessed: usize, right: &[u32]) {
        self.tokens.extend_from_slice(right);
        if guessed == 0 {
            return;
        }
        if right.len() == guessed {
            (self.length, self.failures) = ((self.length * 2).min(MOST), 0);
        } else if right.is_empty() {
            self.failures += 1;
            (self.length, self.rest) = (2, (1 << self.failures.min(6)) - 1);
        } else {
            (self.length, self.failures) = ((right.len() + 1).min(MOST), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_is_guessed_and_failures_make_it_rest() {
        let mut lookup = Lookup::new(&[1, 2, 3, 4, 5, 9, 1]);
        assert_eq!(lookup.guess(2), [3, 4]);
        lookup.learn(2, &[3, 4]);
        assert_eq!(lookup.guess(5), [9, 1, 2, 3]);
        lookup.learn(4, &[]);
        assert!(lookup.guess(9).is_empty() && !lookup.guess(1).is_empty());
        assert!(Lookup::new(&[]).guess(7).is_empty());
    }
}
