//! The pending number, which is being read: an integer of any size, or a text of digits.

use super::super::characters::decimal_digit;

/// Maximum number of digits of an integer, as in Python (`sys.set_int_max_str_digits`). A longer
/// number stays unchanged. The limit also bounds the time per word.
const MAX_DIGITS: usize = 4300;

/// The pending number.
///
/// The reference stores an `int` or a `str` and branches on the type. Here, `kind` is the type, and
/// an integer is stored as its decimal digits.
#[derive(Debug, Default)]
pub(super) struct Value {
    kind: Kind,
    text: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[default]
    Absent,
    Integer,
    Text,
}

impl Value {
    pub(super) fn clear(&mut self) {
        self.kind = Kind::Absent;
        self.text.clear();
    }

    pub(super) fn is_absent(&self) -> bool {
        self.kind == Kind::Absent
    }

    pub(super) fn is_integer(&self) -> bool {
        self.kind == Kind::Integer
    }

    pub(super) fn is_text(&self) -> bool {
        self.kind == Kind::Text
    }

    /// The number as text; empty if no number is pending.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the text ends in a decimal point.
    pub(super) fn ends_in_point(&self) -> bool {
        self.is_text() && self.text.ends_with('.')
    }

    /// Sets the integer `digit` followed by `zeros` zeros; with `zeros` above 0, `digit` must not
    /// be 0.
    pub(super) fn set_integer(&mut self, digit: u8, zeros: u8) {
        self.clear();
        self.push_number(digit);
        self.text.extend(std::iter::repeat_n('0', zeros.into()));
        self.kind = Kind::Integer;
    }

    /// Sets a number written in digits, `\d+(\.\d+)?`: an integer if all decimals are zero, else
    /// the unchanged text.
    pub(super) fn set_written(&mut self, number: &str) {
        self.clear();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if decimals.chars().all(|digit| decimal_digit(digit) == Some(0)) {
            self.kind = Kind::Integer;
            self.text.extend(digits(whole).skip_while(|&digit| digit == '0'));
            if self.text.is_empty() {
                self.text.push('0');
            }
        } else {
            self.kind = Kind::Text;
            self.text.push_str(number);
        }
    }

    /// Converts the number to text; an absent number and the integer 0 become empty text
    /// (`str(value or "")`).
    pub(super) fn start_text(&mut self) {
        if self.is_integer() && self.text == "0" {
            self.text.clear();
        }
        self.kind = Kind::Text;
    }

    /// Appends text to the number.
    pub(super) fn append(&mut self, text: &str) {
        self.kind = Kind::Text;
        self.text.push_str(text);
    }

    /// Appends a number below 100.
    pub(super) fn append_number(&mut self, number: u8) {
        self.kind = Kind::Text;
        self.push_number(number);
    }

    /// Replaces the last digit: "20" and 5 give "25". The kind, integer or text, stays the same.
    pub(super) fn replace_last(&mut self, digit: u8) {
        self.text.pop();
        self.push_number(digit);
    }

    /// Adds a number below 100 to an integer if the number replaces its zeros (`value % 10` or
    /// `value % 100` is 0). Otherwise appends the number and makes the value text.
    pub(super) fn add_or_append(&mut self, number: u8) {
        let zeros = if number < 10 { "0" } else { "00" };
        if self.text == "0" {
            self.text.clear();
            self.push_number(number);
        } else if self.text.ends_with(zeros) {
            self.text.truncate(self.text.len() - zeros.len());
            self.push_number(number);
        } else {
            self.append_number(number);
        }
    }

    /// Multiplies the last three digits of an integer by a power of ten and adds the product to the
    /// rest: `value // 1000 * 1000 + value % 1000 * 10 ** zeros`. `zeros` is at least 2.
    pub(super) fn scale_last_three(&mut self, zeros: u8) {
        let rest = self.text.len().saturating_sub(3);
        let mut residual: u32 = self.text[rest..].parse().unwrap_or(0);
        if residual == 0 {
            return;
        }
        self.text.truncate(rest);
        self.text.push_str("000");
        let zeros = usize::from(zeros);
        self.text.insert_str(0, &"0".repeat(zeros.saturating_sub(self.text.len())));
        // Adds digit by digit, so that the cost does not depend on the length, except for a carry.
        let mut at = self.text.len() - zeros;
        while residual > 0 {
            if at == 0 {
                self.text.insert(0, '0');
                at = 1;
            }
            at -= 1;
            residual += u32::from(self.text.as_bytes()[at] - b'0');
            let digit = char::from(b'0' + (residual % 10) as u8);
            self.text.replace_range(at..=at, digit.encode_utf8(&mut [0; 4]));
            residual /= 10;
        }
    }

    /// Multiplies text by a power of ten if the text is a number and the product is an integer. The
    /// product becomes the value. Otherwise returns false and changes nothing.
    pub(super) fn scale_exactly(&mut self, zeros: u8) -> bool {
        let (whole, decimals) = self.text.split_once('.').unwrap_or((&self.text, ""));
        let zeros = usize::from(zeros);
        let is_too_long = |part: &str| part.len() > MAX_DIGITS && part.chars().count() > MAX_DIGITS;
        let is_number = !decimals.contains('.')
            && !self.text.is_empty()
            && self.text != "."
            && !is_too_long(whole)
            && !is_too_long(decimals);
        if !is_number || digits(decimals).skip(zeros).any(|digit| digit != '0') {
            return false;
        }
        let (point, decimal_count) = (whole.len(), decimals.chars().count());
        if !self.text.is_ascii() {
            self.text = digits(whole).chain(digits(decimals)).collect();
        } else if point < self.text.len() {
            self.text.remove(point);
        }
        // Decimals beyond the zeros of the power are zeros and are removed.
        self.text.truncate(self.text.len() - decimal_count.saturating_sub(zeros));
        self.text.extend(std::iter::repeat_n('0', zeros.saturating_sub(decimal_count)));
        let leading_zeros = self.text.len() - self.text.trim_start_matches('0').len();
        self.text.drain(..leading_zeros.min(self.text.len().saturating_sub(1)));
        self.kind = Kind::Integer;
        true
    }

    fn push_number(&mut self, number: u8) {
        if number >= 10 {
            self.text.push(char::from(b'0' + number / 10 % 10));
        }
        self.text.push(char::from(b'0' + number % 10));
    }
}

/// Converts the digits of any script to ASCII digits.
fn digits(number: &str) -> impl Iterator<Item = char> {
    number.chars().filter_map(decimal_digit).map(|digit| char::from(b'0' + digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: &str) -> Value {
        let mut value = Value::default();
        value.set_written(number);
        value
    }

    #[test]
    fn written_numbers_are_integers_if_possible() {
        for (number, integer) in [("007", "7"), ("3.00", "3"), ("0", "0"), ("٣٤", "34")] {
            let value = written(number);
            assert!(value.is_integer());
            assert_eq!(value.as_str(), integer);
        }
        assert!(written("٣.5").is_text());
        assert_eq!(written("01.50").as_str(), "01.50");
    }

    #[test]
    fn scaling_the_last_three_digits_equals_the_reference_formula() {
        for number in [0u128, 1, 7, 999, 1000, 1001, 12_345, 999_999, 1_000_999, 99_999_999_999] {
            for zeros in [2u8, 3, 6, 9, 18, 33] {
                let mut value = written(&number.to_string());
                value.scale_last_three(zeros);
                let expected = number / 1000 * 1000 + number % 1000 * 10u128.pow(zeros.into());
                assert_eq!(value.as_str(), expected.to_string(), "{number} with {zeros} zeros");
            }
        }
    }

    #[test]
    fn scaling_carries_into_any_number_of_digits() {
        let mut value = written(&"9".repeat(86));
        value.scale_last_three(33);
        // …9,000 and 999 decillion.
        let expected = format!("1{}998{}000", "0".repeat(50), "9".repeat(30));
        assert_eq!(value.as_str(), expected);
    }

    #[test]
    fn exact_scaling_needs_an_integer_product() {
        let scaled = |number: &str, zeros| {
            let mut value = Value::default();
            value.append(number);
            value.scale_exactly(zeros).then(|| value.as_str().to_owned())
        };
        assert_eq!(scaled("2.5", 3).as_deref(), Some("2500"));
        assert_eq!(scaled(".5", 2).as_deref(), Some("50"));
        assert_eq!(scaled("00", 6).as_deref(), Some("0"));
        assert_eq!(scaled("1.234", 2), None);
        assert_eq!(scaled("1.2340", 3).as_deref(), Some("1234"));
        assert_eq!(scaled("٣.٥00", 2).as_deref(), Some("350"));
        assert_eq!(scaled("0.0", 2).as_deref(), Some("0"));
        assert_eq!(scaled("1.2.3", 6), None);
        assert_eq!(scaled(".", 6), None);
        assert_eq!(scaled(&"1".repeat(4301), 6), None);
    }
}
