#include "vlmtrain/text/chat_template.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/template/answer_spans.h"
#include "text/template/template_probe.h"
#include "text/unicode/unicode_classes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::text {
namespace {

/// Returns `jinja_source` with `block` in place of each `placeholder`.
std::string replace_placeholder(std::string jinja_source, std::string_view placeholder, const std::string& block) {
  for (size_t pos = jinja_source.find(placeholder); pos != std::string::npos;
       pos = jinja_source.find(placeholder, pos + block.size())) {
    jinja_source.replace(pos, placeholder.size(), block);
  }
  return jinja_source;
}

/// Returns a built-in template with the markup of the model family for images and videos. Returns
/// other templates unchanged.
TemplateSource insert_family_markup(TemplateSource source, const TemplateSettings& settings) {
  if (source.end_of_turn_token.data() == nullptr) return source;  // not a built-in template
  if (settings.image_markup.block != kImagePlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kImagePlaceholder, settings.image_markup.block);
  }
  if (!settings.video_markup.block.empty() && settings.video_markup.block != kVideoPlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kVideoPlaceholder, settings.video_markup.block);
  }
  return source;
}

/// Returns the end of token `i`: the next greater start, because the byte tokens of one character
/// may share a start.
size_t find_token_end(const Encoding& encoding, size_t i, size_t text_size) {
  for (size_t next = i + 1; next < encoding.starts.size(); ++next) {
    if (encoding.starts[next] > encoding.starts[i]) return encoding.starts[next];
  }
  return text_size;
}

}  // namespace

/// A parsed template with its special tokens and the traits that the probe found.
struct ChatTemplate::Impl {
  Impl(TemplateSource source_, TemplateSettings settings_, const Tokenizer& tokenizer)
      : source(insert_family_markup(std::move(source_), settings_)),
        settings(std::move(settings_)),
        jinja_template(jinja::Template::parse(source.jinja_source, source.name)),
        traits(probe_template(jinja_template, source, settings, tokenizer)) {}

  TemplateSource source;
  TemplateSettings settings;
  jinja::Template jinja_template;
  TemplateTraits traits;
};

namespace {

/// A builder of a RenderedChat. Finds the answers and media in a rendered text.
class RenderedChatBuilder {
 public:
  RenderedChatBuilder(jinja::RenderedText rendering, const TemplateTraits& traits, const TemplateSettings& settings)
      : rendering_(std::move(rendering)), traits_(traits), settings_(settings) {}

  /// Returns the chat. Call it once, because it moves the text out. `ends_with_answer`: the last
  /// turn is complete, so that a missing end of turn is inserted.
  RenderedChat build_chat(std::span<const Turn> turns, bool ends_with_answer) {
    RenderedChat chat;
    const std::vector<size_t> num_visible_bytes_by_turn = count_visible_bytes_by_turn(turns.size());
    bool has_answer = false, has_end_of_turn = false;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const std::string turn_text = remove_placeholders(turn);
      if (!traits_.end_of_turn_token.empty() && turn_text.find(traits_.end_of_turn_token) != std::string::npos) {
        add_notice("text that contains the end-of-turn token, which ends the turn there", turn, chat.notices);
      }
      if (turn.role != Role::kAssistant) {
        if (num_visible_bytes_by_turn[i] < count_visible_bytes(turn_text)) add_omission_notice(turn, chat.notices);
        continue;
      }
      const bool is_last_answer = ends_with_answer && i + 1 == turns.size();
      reject_repeated_answer(static_cast<int>(i), turn.text);
      const AnswerSpans answer_spans =
          find_answer_spans(rendering_, static_cast<int>(i), turn_text, traits_, settings_);
      if (!answer_spans.is_complete) add_omission_notice(turn, chat.notices);
      if (answer_spans.spans.empty()) continue;  // the template omits this turn
      has_answer = true;
      for (const TextSpan& span : extend_answer_spans(answer_spans.spans, is_last_answer))
        add_or_merge_span(chat.answers, span);
      has_end_of_turn = has_end_of_turn || ends_with_end_of_turn(chat.answers.back());
    }
    if (has_answer && !has_end_of_turn) {
      chat.notices.push_back({"answers without an end-of-turn token", make_excerpt(turns.back().text)});
    }
    chat.media = find_media_spans();
    add_generated_answers(chat);
    chat.text = std::move(rendering_.text);
    return chat;
  }

 private:
  /// Returns the text of `turn` without placeholders.
  static std::string remove_placeholders(const Turn& turn) {
    std::string turn_text;
    for (const TurnPiece& piece : split_at_placeholders(turn)) turn_text += piece.text;
    return turn_text;
  }

  /// Adds a notice that the template omits text of `turn`.
  static void add_omission_notice(const Turn& turn, std::vector<io::Notice>& notices) {
    const char* const kind = turn.role == Role::kAssistant ? "text of an answer that the chat template omits"
                             : turn.role == Role::kSystem  ? "system text that the chat template omits"
                                                           : "text of a question that the chat template omits";
    add_notice(kind, turn, notices);
  }

  static void add_notice(const char* kind, const Turn& turn, std::vector<io::Notice>& notices) {
    if (std::ranges::count(notices, kind, &io::Notice::kind) == 0) notices.push_back({kind, make_excerpt(turn.text)});
  }

  /// Returns, for each turn, the number of its visible bytes that the text contains.
  std::vector<size_t> count_visible_bytes_by_turn(size_t num_turns) const {
    std::vector<size_t> num_visible_bytes_by_turn(num_turns, 0);
    for (const jinja::OriginSpan& origin_span : rendering_.origin_spans) {
      if (static_cast<size_t>(origin_span.origin) >= num_turns) continue;
      num_visible_bytes_by_turn[static_cast<size_t>(origin_span.origin)] += count_visible_bytes(
          std::string_view(rendering_.text).substr(origin_span.begin, origin_span.end - origin_span.begin));
    }
    return num_visible_bytes_by_turn;
  }

  /// Throws UserError (bad data) if the text contains an answer twice. probe_template() checks only
  /// its own conversations.
  void reject_repeated_answer(int turn, const std::string& text) const {
    if (!is_text_repeated(rendering_, turn, text)) return;
    throw data_error("turn {}: the chat template writes this answer more than once, so its label tokens are ambiguous",
                     turn + 1);
  }

  /// Returns the spans of an answer, extended by the white space before it and the end of turn
  /// after it.
  std::vector<TextSpan> extend_answer_spans(std::vector<TextSpan> spans, bool is_last_answer) {
    spans.front().begin -= compute_leading_space_length(spans.front().begin);
    size_t& end = spans.back().end;
    const size_t ending_length = compute_answer_ending_length(end);
    if (ending_length > 0) {
      end += ending_length;
    } else if (is_last_answer) {
      end = find_generation_block_end(end);
      if (const size_t length_through_ending = compute_length_through_ending(end); length_through_ending > 0) {
        end += length_through_ending;
      } else if (!std::string_view(rendering_.text).substr(0, end).ends_with(traits_.end_of_turn_token)) {
        insert_end_of_turn(end);
        end += traits_.end_of_turn_token.size();
      }
    }
    return spans;
  }

  /// Returns compute_answer_ending_length(). If it is 0, returns the length of the text up to and
  /// including the next end of turn, provided that only the template wrote this text; else 0.
  size_t compute_length_through_ending(size_t offset) const {
    if (const size_t ending_length = compute_answer_ending_length(offset); ending_length > 0) return ending_length;
    const size_t token_begin = rendering_.text.find(traits_.end_of_turn_token, offset);
    if (token_begin == std::string::npos) return 0;
    const size_t end = token_begin + traits_.end_of_turn_token.size();
    const bool is_from_template =
        std::ranges::none_of(rendering_.origin_spans, [&](const jinja::OriginSpan& origin_span) {
          return !origin_span.empty() && origin_span.begin < end && origin_span.end > offset;
        });
    return is_from_template ? end - offset : 0;
  }

  /// Returns the end of the `generation` block that contains `offset`, or `offset` if there is
  /// none. Excludes white space at the end of the block, because an end of turn replaces it.
  size_t find_generation_block_end(size_t offset) const {
    for (const jinja::GeneratedSpan& generated_span : rendering_.generated_spans) {
      if (generated_span.begin >= offset || offset >= generated_span.end) continue;
      const std::string_view remaining_text =
          std::string_view(rendering_.text).substr(offset, generated_span.end - offset);
      return offset + remaining_text.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0: only white space
    }
    return offset;
  }

  bool ends_with_end_of_turn(const TextSpan& answer) const {
    const std::string_view text = std::string_view(rendering_.text).substr(answer.begin, answer.end - answer.begin);
    return text.ends_with(traits_.end_of_turn_token) ||
           std::ranges::any_of(traits_.answer_endings,
                               [text](const std::string& ending) { return text.ends_with(ending); });
  }

  /// Adds the output of `generation` blocks, without media, to the answers. White space at the end
  /// of a block is added only if the block has an end of turn.
  void add_generated_answers(RenderedChat& chat) const {
    if (rendering_.generated_spans.empty()) return;
    std::vector<TextSpan> answer_spans = chat.answers;
    for (const jinja::GeneratedSpan& generated_span : rendering_.generated_spans) {
      size_t begin = generated_span.begin;
      const std::string_view generated_text =
          std::string_view(rendering_.text).substr(begin, generated_span.end - begin);
      const bool has_end_of_turn = generated_text.find(traits_.end_of_turn_token) != std::string_view::npos;
      const size_t end = has_end_of_turn ? generated_span.end
                                         : begin + generated_text.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0
      for (const MediaSpan& media_span : chat.media) {
        if (media_span.span.end <= begin || media_span.span.begin >= end) continue;
        if (begin < media_span.span.begin) answer_spans.push_back({begin, media_span.span.begin});
        begin = media_span.span.end;
      }
      if (begin < end) answer_spans.push_back({begin, end});
    }
    std::ranges::sort(answer_spans, {}, &TextSpan::begin);
    chat.answers.clear();
    for (const TextSpan& span : answer_spans) add_or_merge_span(chat.answers, span);
  }

  /// Returns the length of the white space before `offset` that the model has to generate.
  size_t compute_leading_space_length(size_t offset) const {
    const std::string& answer_leading_space = traits_.answer_leading_space;
    if (!std::string_view(rendering_.text).substr(0, offset).ends_with(answer_leading_space)) return 0;
    const bool is_from_template = answer_leading_space.empty() || !is_turn_text(offset - answer_leading_space.size());
    return is_from_template ? answer_leading_space.size() : 0;
  }

  /// Returns the length of the template text from `offset` through the end of turn, or 0 if no end
  /// of turn follows.
  size_t compute_answer_ending_length(size_t offset) const {
    const std::string_view following_text = std::string_view(rendering_.text).substr(offset);
    const auto is_template_text = [&](std::string_view ending) {
      return following_text.starts_with(ending) && !is_turn_text(offset) && !is_turn_text(offset + ending.size() - 1);
    };
    for (const std::string& ending : traits_.answer_endings) {
      if (is_template_text(ending)) return ending.size();
    }
    const size_t num_white_space_bytes = count_leading_white_space(following_text);
    const bool has_end_of_turn =
        following_text.substr(num_white_space_bytes).starts_with(traits_.end_of_turn_token) &&
        is_template_text(following_text.substr(0, num_white_space_bytes + traits_.end_of_turn_token.size()));
    return has_end_of_turn ? num_white_space_bytes + traits_.end_of_turn_token.size() : 0;
  }

  /// Inserts the end of turn at `offset`.
  void insert_end_of_turn(size_t offset) {
    const size_t num_white_space_bytes = count_leading_white_space(std::string_view(rendering_.text).substr(offset));
    // Only white space at the end of the text can be replaced; other white space separates turns.
    const size_t num_replaced_bytes =
        offset + num_white_space_bytes == rendering_.text.size() ? num_white_space_bytes : 0;
    rendering_.text.replace(offset, num_replaced_bytes, traits_.end_of_turn_token);
    std::erase_if(rendering_.generated_spans,
                  [offset](const jinja::GeneratedSpan& generated_span) { return generated_span.begin >= offset; });
    for (jinja::GeneratedSpan& generated_span : rendering_.generated_spans)
      generated_span.end = std::min(generated_span.end, offset);
  }

  /// Returns whether the character at `offset` comes from the text of a turn.
  bool is_turn_text(size_t offset) const {
    return std::ranges::any_of(rendering_.origin_spans, [offset](const jinja::OriginSpan& origin_span) {
      return origin_span.begin <= offset && offset < origin_span.end;
    });
  }

  static void add_or_merge_span(std::vector<TextSpan>& spans, const TextSpan& span) {
    if (!spans.empty() && spans.back().end >= span.begin) {
      spans.back().end = std::max(spans.back().end, span.end);
    } else {
      spans.push_back(span);
    }
  }

  /// Returns all media tokens. If turns are lists of blocks, only the template writes media tokens,
  /// so the same characters in the text of a turn are not media.
  std::vector<MediaSpan> find_media_spans() const {
    std::vector<MediaSpan> spans;
    for (size_t pos = 0;;) {
      const size_t image_begin = find_token(settings_.image_markup.token, pos),
                   video_begin = find_token(settings_.video_markup.token, pos);
      const size_t begin = std::min(image_begin, video_begin);
      if (begin == std::string::npos) return spans;
      const bool is_video = video_begin < image_begin;
      const size_t end = begin + (is_video ? settings_.video_markup : settings_.image_markup).token.size();
      if (!traits_.content_format.user_uses_blocks || !is_turn_text(begin)) spans.push_back({{begin, end}, is_video});
      pos = end;
    }
  }

  size_t find_token(const std::string& token, size_t search_begin) const {
    return token.empty() ? std::string::npos : rendering_.text.find(token, search_begin);
  }

  jinja::RenderedText rendering_;
  const TemplateTraits& traits_;
  const TemplateSettings& settings_;
};

}  // namespace

ChatTemplate::ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer)
    : impl_(std::make_shared<const Impl>(std::move(source), std::move(settings), tokenizer)) {}

const TemplateSource& ChatTemplate::source() const {
  return impl_->source;
}
std::string_view ChatTemplate::end_of_turn_token() const {
  return impl_->traits.end_of_turn_token;
}
bool ChatTemplate::omits_last_end_of_turn() const {
  return impl_->traits.omits_last_end_of_turn;
}
bool ChatTemplate::writes_bos_token() const {
  return impl_->traits.writes_bos_token;
}

std::string ChatTemplate::describe() const {
  std::string text =
      fmt::format("chat template {}{}; ", impl_->source.name,
                  impl_->source.is_checkpoint_default ? ", the checkpoint's own"
                                                      : ", which saved checkpoints carry as chat_template.jinja");
  text +=
      impl_->traits.omits_last_end_of_turn
          ? fmt::format("it writes nothing after the last answer, so {} is appended", impl_->traits.end_of_turn_token)
          : fmt::format("an answer ends with {}", impl_->traits.end_of_turn_token);
  for (const std::string& note : impl_->traits.notes) text += "; " + note;
  return text;
}

RenderedChat ChatTemplate::render(std::span<const Turn> turns, bool add_generation_prompt) const {
  if (turns.empty()) throw data_error("A conversation has no turns; give it a question and an answer, or drop it");
  jinja::RenderedText rendering = render_messages(impl_->jinja_template, turns, impl_->traits.content_format,
                                                  impl_->settings, add_generation_prompt);
  return RenderedChatBuilder(std::move(rendering), impl_->traits, impl_->settings)
      .build_chat(turns, /*ends_with_answer=*/!add_generation_prompt);
}

std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text,
                                     std::span<const TextSpan> answers) {
  for (size_t i = 1; i < answers.size(); ++i) {
    VLMTRAIN_CHECK(answers[i - 1].end <= answers[i].begin, "answers {} and {} overlap", i - 1, i);
  }
  std::vector<char> label_mask(encoding.ids.size(), 0);
  size_t next_answer_index = 0;
  for (size_t i = 0; i < encoding.starts.size(); ++i) {
    while (next_answer_index < answers.size() && answers[next_answer_index].end <= encoding.starts[i])
      ++next_answer_index;
    if (next_answer_index == answers.size()) break;
    const size_t start = encoding.starts[i], begin = answers[next_answer_index].begin;
    const bool reaches_into_answer = start < begin && start + count_leading_white_space(text.substr(start)) >= begin &&
                                     find_token_end(encoding, i, text.size()) > begin;
    label_mask[i] = begin <= start || reaches_into_answer ? 1 : 0;
  }
  return label_mask;
}

}  // namespace vlmtrain::text
