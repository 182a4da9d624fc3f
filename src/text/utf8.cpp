#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace vlmtrain::text {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

unsigned char byte_at(std::string_view text, size_t at) {
  return static_cast<unsigned char>(text[at]);
}

struct SequenceForm {
  size_t bytes;
  unsigned char second_low;  // the second byte's limits exclude overlong forms, surrogates and what is past U+10FFFF
  unsigned char second_high;
  char32_t lead_bits;
};

std::optional<SequenceForm> form_of(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return SequenceForm{2, 0x80, 0xBF, lead & 0x1FU};
  if (lead == 0xE0) return SequenceForm{3, 0xA0, 0xBF, 0};
  if (lead == 0xED) return SequenceForm{3, 0x80, 0x9F, 0xD};
  if (lead >= 0xE1 && lead <= 0xEF) return SequenceForm{3, 0x80, 0xBF, lead & 0x0FU};
  if (lead == 0xF0) return SequenceForm{4, 0x90, 0xBF, 0};
  if (lead >= 0xF1 && lead <= 0xF3) return SequenceForm{4, 0x80, 0xBF, lead & 0x07U};
  if (lead == 0xF4) return SequenceForm{4, 0x80, 0x8F, 4};
  return std::nullopt;
}

}  // namespace

Utf8Step read_utf8(std::string_view text, size_t at) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1, true};
  const auto form = form_of(lead);
  if (!form) return {kReplacement, 1, false};
  char32_t code_point = form->lead_bits;
  for (size_t i = 1; i < form->bytes; ++i) {
    const unsigned char low = i == 1 ? form->second_low : 0x80;
    const unsigned char high = i == 1 ? form->second_high : 0xBF;
    if (at + i >= text.size() || byte_at(text, at + i) < low || byte_at(text, at + i) > high) {
      return {kReplacement, i, false};
    }
    code_point = code_point << 6U | (byte_at(text, at + i) & 0x3FU);
  }
  return {code_point, form->bytes, true};
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    if (!step.valid) return at;
    at += step.bytes;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    if (step.valid) {
      out.append(text.substr(at, step.bytes));
    } else {
      append_utf8(out, kReplacement);
    }
    at += step.bytes;
  }
  return out;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  // Alphabetic also holds symbols: circled and squared letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D) {
    return true;
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace vlmtrain::text
