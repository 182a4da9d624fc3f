#include "evaluation/metrics/multiple_choice.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

namespace {

constexpr std::u32string_view kChoices = U"ABCDEFGH";

/// Phrases that precede the selected letter, in lower case.
constexpr std::u32string_view kAnswerPhrases[]{U"the answer is",
                                               U"answer is",
                                               U"the correct answer is",
                                               U"correct answer is",
                                               U"the best answer is",
                                               U"best answer is",
                                               U"the correct option is",
                                               U"correct option is",
                                               U"the best option is",
                                               U"best option is",
                                               U"the choice is",
                                               U"choice is",
                                               U"the correct choice is",
                                               U"correct choice is",
                                               U"i choose",
                                               U"i select",
                                               U"i pick",
                                               U"my answer is",
                                               U"my choice is",
                                               U"옵션",
                                               U"정답은",
                                               U"답은",
                                               U"답:",
                                               U"答案是",
                                               U"答案为",
                                               U"选",
                                               U"答えは"};

/// Removed at both ends of an answer, one after the other.
constexpr std::string_view kTrimmedCharacters = ",.!?;:'\"";

// Reliability of the formats, as lmms-eval ranks them.
constexpr int kAtStart = 10, kAtEnd = 9, kAfterPhrase = 7;
constexpr int kAnywhere = 0;

/// A format: the letter between two texts.
struct ChoiceFormat {
  std::u32string_view before, after;
  int priority;
};
constexpr ChoiceFormat kChoiceFormats[]{
    {U"(", U")", 6}, {U"", U".", 5}, {U"", U":", 4}, {U"", U")", 3}, {U"", U" ", 2}};

/// The most reliable of the added candidates, and the last one among equals.
class BestChoice {
 public:
  /// `pos`: position in the answer, or npos for a letter that does not occur.
  void add(char32_t letter, size_t pos, int priority) {
    if (pos == std::u32string_view::npos) return;
    if (letter_ && std::pair(priority, pos) <= std::pair(priority_, pos_)) return;
    letter_ = static_cast<char>(letter);
    priority_ = priority;
    pos_ = pos;
  }
  std::optional<char> letter() const { return letter_; }

 private:
  std::optional<char> letter_;
  int priority_ = 0;
  size_t pos_ = 0;
};

std::string trim_characters(std::string text, std::string_view characters) {
  for (const char character : characters) {
    const size_t first = text.find_first_not_of(character);
    if (first == std::string::npos) return "";
    text = text.substr(first, text.find_last_not_of(character) - first + 1);
  }
  return text;
}

void add_letters_in_formats(std::u32string_view text, BestChoice& best) {
  for (const auto& [before, after, priority] : kChoiceFormats) {
    for (const char32_t letter : kChoices)
      best.add(letter, text.rfind(std::u32string(before) + letter + std::u32string(after)), priority);
  }
}

void add_letters_after_phrases(std::u32string_view text, std::u32string_view lower_text, BestChoice& best) {
  for (const std::u32string_view phrase : kAnswerPhrases) {
    const size_t phrase_pos = lower_text.find(phrase);
    if (phrase_pos == std::u32string_view::npos) continue;
    for (const char32_t letter : kChoices)
      best.add(letter, text.find(letter, phrase_pos + phrase.size()), kAfterPhrase);
  }
}

/// Adds a letter at the start and at the end of the text, unless it is a part of a word.
void add_letters_at_ends(std::u32string_view text, BestChoice& best) {
  if (text.empty()) return;
  const bool is_single = text.size() == 1;
  const auto is_choice = [](char32_t character) { return kChoices.find(character) != std::u32string_view::npos; };
  if (is_choice(text.front()) && (is_single || !text::is_python_alpha(text[1]))) best.add(text.front(), 0, kAtStart);
  if (is_choice(text.back()) && (is_single || !text::is_python_alpha(text[text.size() - 2])))
    best.add(text.back(), text.size(), kAtEnd);
}

}  // namespace

std::optional<char> find_selected_choice(std::string_view answer) {
  const std::string trimmed = trim_characters(text::strip_python_space(answer), kTrimmedCharacters);
  const std::string padded = " " + trimmed + " ";
  const std::u32string characters = text::decode_utf8(padded);
  BestChoice best;
  add_letters_in_formats(characters, best);
  add_letters_after_phrases(characters, text::decode_utf8(text::to_python_lower(padded)), best);
  add_letters_at_ends(text::decode_utf8(text::strip_python_space(trimmed)), best);
  if (best.letter()) return best.letter();
  for (const char32_t letter : kChoices) best.add(letter, characters.rfind(letter), kAnywhere);
  return best.letter();
}

std::optional<char> find_expected_choice(std::string_view answer) {
  std::string text = text::strip_python_space(answer);
  if (text.starts_with('(')) text.erase(0, 1);
  if (text.empty() || text[0] < 'A' || text[0] > 'H') return std::nullopt;
  constexpr std::string_view kEndsOfLetter = ".):,";
  return text.size() == 1 || kEndsOfLetter.find(text[1]) != std::string_view::npos ? std::optional(text[0])
                                                                                   : std::nullopt;
}

MetricSum score_multiple_choice(std::string_view expected, std::string_view prediction) {
  const auto expected_choice = find_expected_choice(expected);
  if (!expected_choice) return {};
  return {.sum = find_selected_choice(prediction) == expected_choice ? 1.0 : 0.0, .weight = 1};
}

}  // namespace vlmtrain::evaluation
