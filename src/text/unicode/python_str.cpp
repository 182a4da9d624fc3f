#include "vlmtrain/text/python_str.h"

#include "text/unicode/case_mapping.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text {

namespace {

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
