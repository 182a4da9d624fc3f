#include "vlmtrain/text/python_str.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>

#include "text/unicode/characters.h"

namespace vlmtrain::text {

namespace {

/// A character whose uppercase or titlecase form has several characters. Source: the
/// language-independent mappings of Unicode's SpecialCasing.txt, which Python applies.
struct SpecialCasing {
  char32_t character;
  std::u32string_view replacement;
};

/// Uppercase forms of several characters, in ascending order.
constexpr std::array<SpecialCasing, 102> kSpecialUppercase = {{
    {0x00DF, U"SS"},
    {0x0149, U"\u02BCN"},
    {0x01F0, U"J\u030C"},
    {0x0390, U"\u0399\u0308\u0301"},
    {0x03B0, U"\u03A5\u0308\u0301"},
    {0x0587, U"\u0535\u0552"},
    {0x1E96, U"H\u0331"},
    {0x1E97, U"T\u0308"},
    {0x1E98, U"W\u030A"},
    {0x1E99, U"Y\u030A"},
    {0x1E9A, U"A\u02BE"},
    {0x1F50, U"\u03A5\u0313"},
    {0x1F52, U"\u03A5\u0313\u0300"},
    {0x1F54, U"\u03A5\u0313\u0301"},
    {0x1F56, U"\u03A5\u0313\u0342"},
    {0x1F80, U"\u1F08\u0399"},
    {0x1F81, U"\u1F09\u0399"},
    {0x1F82, U"\u1F0A\u0399"},
    {0x1F83, U"\u1F0B\u0399"},
    {0x1F84, U"\u1F0C\u0399"},
    {0x1F85, U"\u1F0D\u0399"},
    {0x1F86, U"\u1F0E\u0399"},
    {0x1F87, U"\u1F0F\u0399"},
    {0x1F88, U"\u1F08\u0399"},
    {0x1F89, U"\u1F09\u0399"},
    {0x1F8A, U"\u1F0A\u0399"},
    {0x1F8B, U"\u1F0B\u0399"},
    {0x1F8C, U"\u1F0C\u0399"},
    {0x1F8D, U"\u1F0D\u0399"},
    {0x1F8E, U"\u1F0E\u0399"},
    {0x1F8F, U"\u1F0F\u0399"},
    {0x1F90, U"\u1F28\u0399"},
    {0x1F91, U"\u1F29\u0399"},
    {0x1F92, U"\u1F2A\u0399"},
    {0x1F93, U"\u1F2B\u0399"},
    {0x1F94, U"\u1F2C\u0399"},
    {0x1F95, U"\u1F2D\u0399"},
    {0x1F96, U"\u1F2E\u0399"},
    {0x1F97, U"\u1F2F\u0399"},
    {0x1F98, U"\u1F28\u0399"},
    {0x1F99, U"\u1F29\u0399"},
    {0x1F9A, U"\u1F2A\u0399"},
    {0x1F9B, U"\u1F2B\u0399"},
    {0x1F9C, U"\u1F2C\u0399"},
    {0x1F9D, U"\u1F2D\u0399"},
    {0x1F9E, U"\u1F2E\u0399"},
    {0x1F9F, U"\u1F2F\u0399"},
    {0x1FA0, U"\u1F68\u0399"},
    {0x1FA1, U"\u1F69\u0399"},
    {0x1FA2, U"\u1F6A\u0399"},
    {0x1FA3, U"\u1F6B\u0399"},
    {0x1FA4, U"\u1F6C\u0399"},
    {0x1FA5, U"\u1F6D\u0399"},
    {0x1FA6, U"\u1F6E\u0399"},
    {0x1FA7, U"\u1F6F\u0399"},
    {0x1FA8, U"\u1F68\u0399"},
    {0x1FA9, U"\u1F69\u0399"},
    {0x1FAA, U"\u1F6A\u0399"},
    {0x1FAB, U"\u1F6B\u0399"},
    {0x1FAC, U"\u1F6C\u0399"},
    {0x1FAD, U"\u1F6D\u0399"},
    {0x1FAE, U"\u1F6E\u0399"},
    {0x1FAF, U"\u1F6F\u0399"},
    {0x1FB2, U"\u1FBA\u0399"},
    {0x1FB3, U"\u0391\u0399"},
    {0x1FB4, U"\u0386\u0399"},
    {0x1FB6, U"\u0391\u0342"},
    {0x1FB7, U"\u0391\u0342\u0399"},
    {0x1FBC, U"\u0391\u0399"},
    {0x1FC2, U"\u1FCA\u0399"},
    {0x1FC3, U"\u0397\u0399"},
    {0x1FC4, U"\u0389\u0399"},
    {0x1FC6, U"\u0397\u0342"},
    {0x1FC7, U"\u0397\u0342\u0399"},
    {0x1FCC, U"\u0397\u0399"},
    {0x1FD2, U"\u0399\u0308\u0300"},
    {0x1FD3, U"\u0399\u0308\u0301"},
    {0x1FD6, U"\u0399\u0342"},
    {0x1FD7, U"\u0399\u0308\u0342"},
    {0x1FE2, U"\u03A5\u0308\u0300"},
    {0x1FE3, U"\u03A5\u0308\u0301"},
    {0x1FE4, U"\u03A1\u0313"},
    {0x1FE6, U"\u03A5\u0342"},
    {0x1FE7, U"\u03A5\u0308\u0342"},
    {0x1FF2, U"\u1FFA\u0399"},
    {0x1FF3, U"\u03A9\u0399"},
    {0x1FF4, U"\u038F\u0399"},
    {0x1FF6, U"\u03A9\u0342"},
    {0x1FF7, U"\u03A9\u0342\u0399"},
    {0x1FFC, U"\u03A9\u0399"},
    {0xFB00, U"FF"},
    {0xFB01, U"FI"},
    {0xFB02, U"FL"},
    {0xFB03, U"FFI"},
    {0xFB04, U"FFL"},
    {0xFB05, U"ST"},
    {0xFB06, U"ST"},
    {0xFB13, U"\u0544\u0546"},
    {0xFB14, U"\u0544\u0535"},
    {0xFB15, U"\u0544\u053B"},
    {0xFB16, U"\u054E\u0546"},
    {0xFB17, U"\u0544\u053D"},
}};

/// Titlecase forms of several characters, in ascending order.
constexpr std::array<SpecialCasing, 48> kSpecialTitlecase = {{
    {0x00DF, U"Ss"},
    {0x0149, U"\u02BCN"},
    {0x01F0, U"J\u030C"},
    {0x0390, U"\u0399\u0308\u0301"},
    {0x03B0, U"\u03A5\u0308\u0301"},
    {0x0587, U"\u0535\u0582"},
    {0x1E96, U"H\u0331"},
    {0x1E97, U"T\u0308"},
    {0x1E98, U"W\u030A"},
    {0x1E99, U"Y\u030A"},
    {0x1E9A, U"A\u02BE"},
    {0x1F50, U"\u03A5\u0313"},
    {0x1F52, U"\u03A5\u0313\u0300"},
    {0x1F54, U"\u03A5\u0313\u0301"},
    {0x1F56, U"\u03A5\u0313\u0342"},
    {0x1FB2, U"\u1FBA\u0345"},
    {0x1FB4, U"\u0386\u0345"},
    {0x1FB6, U"\u0391\u0342"},
    {0x1FB7, U"\u0391\u0342\u0345"},
    {0x1FC2, U"\u1FCA\u0345"},
    {0x1FC4, U"\u0389\u0345"},
    {0x1FC6, U"\u0397\u0342"},
    {0x1FC7, U"\u0397\u0342\u0345"},
    {0x1FD2, U"\u0399\u0308\u0300"},
    {0x1FD3, U"\u0399\u0308\u0301"},
    {0x1FD6, U"\u0399\u0342"},
    {0x1FD7, U"\u0399\u0308\u0342"},
    {0x1FE2, U"\u03A5\u0308\u0300"},
    {0x1FE3, U"\u03A5\u0308\u0301"},
    {0x1FE4, U"\u03A1\u0313"},
    {0x1FE6, U"\u03A5\u0342"},
    {0x1FE7, U"\u03A5\u0308\u0342"},
    {0x1FF2, U"\u1FFA\u0345"},
    {0x1FF4, U"\u038F\u0345"},
    {0x1FF6, U"\u03A9\u0342"},
    {0x1FF7, U"\u03A9\u0342\u0345"},
    {0xFB00, U"Ff"},
    {0xFB01, U"Fi"},
    {0xFB02, U"Fl"},
    {0xFB03, U"Ffi"},
    {0xFB04, U"Ffl"},
    {0xFB05, U"St"},
    {0xFB06, U"St"},
    {0xFB13, U"\u0544\u0576"},
    {0xFB14, U"\u0544\u0565"},
    {0xFB15, U"\u0544\u056B"},
    {0xFB16, U"\u054E\u0576"},
    {0xFB17, U"\u0544\u056D"},
}};

/// Appends the special form of `character` to `out`. Returns whether `special_casings` has one.
bool try_append_special_casing(std::span<const SpecialCasing> special_casings, char32_t character, std::string& out) {
  const auto match = std::ranges::lower_bound(special_casings, character, {}, &SpecialCasing::character);
  if (match == special_casings.end() || match->character != character) return false;
  for (const char32_t code_point : match->replacement) append_utf8(out, code_point);
  return true;
}

/// Returns whether the character is uppercase, lowercase or titlecase.
bool is_cased(char32_t character) {
  return is_uppercase(character) || is_lowercase(character) || is_titlecase(character);
}

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kCapitalIWithDot = 0x130;
constexpr std::string_view kSmallIWithDot = "i\xCC\x87";  // the only lowercase form with several characters

/// Returns whether the sigma at `pos` ends a word. Python lowercases it to kFinalSigma then.
bool is_final_sigma(std::string_view text, size_t pos) {
  const size_t next = find_next_character(text, pos);
  const bool follows_cased_character =
      pos > 0 && is_cased(read_utf8(text, find_previous_character(text, pos)).code_point);
  return follows_cased_character && (next == text.size() || !is_cased(read_utf8(text, next).code_point));
}

using AppendMappedCharacter = void (*)(std::string_view text, size_t pos, std::string& out);

std::string map_characters(std::string_view text, AppendMappedCharacter append_mapped_character) {
  const std::string valid_text = replace_invalid_utf8(text);
  std::string mapped_text;
  mapped_text.reserve(valid_text.size());
  for (size_t pos = 0; pos < valid_text.size(); pos = find_next_character(valid_text, pos))
    append_mapped_character(valid_text, pos, mapped_text);
  return mapped_text;
}

}  // namespace

void append_uppercase(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (!try_append_special_casing(kSpecialUppercase, character, out)) {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))));
  }
}

void append_lowercase(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (character == kCapitalSigma && is_final_sigma(text, pos)) {
    append_utf8(out, kFinalSigma);
  } else if (character == kCapitalIWithDot) {
    out += kSmallIWithDot;
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
  }
}

void append_titlecase(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (!try_append_special_casing(kSpecialTitlecase, character, out)) {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character))));
  }
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string code_points;
  code_points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Character character = read_utf8(text, pos);
    code_points += character.code_point;
    pos += character.num_bytes;
  }
  return code_points;
}

std::string to_python_lower(std::string_view text) {
  return map_characters(text, append_lowercase);
}

std::string to_python_upper(std::string_view text) {
  return map_characters(text, append_uppercase);
}

std::string strip_python_space(std::string_view text) {
  return std::string(strip_white_space(replace_invalid_utf8(text)));
}

std::vector<std::string> split_python_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto finish_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (const char32_t code_point : decode_utf8(text)) {
    if (is_python_space(code_point)) {
      finish_word();
    } else {
      append_utf8(word, code_point);
    }
  }
  finish_word();
  return words;
}

bool is_python_alpha(char32_t code_point) {
  return is_letter(code_point);
}

}  // namespace vlmtrain::text
