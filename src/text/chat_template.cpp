#include "vlmtrain/text/chat_template.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/answer_place.h"
#include "text/media_marks.h"
#include "text/template_probe.h"
#include "text/visible_characters.h"
#include "text/white_space.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::text {
namespace {

std::string with_media(std::string jinja, std::string_view mark, const std::string& block) {
  for (size_t at = jinja.find(mark); at != std::string::npos; at = jinja.find(mark, at + block.size())) {
    jinja.replace(at, mark.size(), block);
  }
  return jinja;
}

/// A template of the table, with what the family writes for an image or a video.
TemplateSource of_family(TemplateSource source, const TemplateSettings& settings) {
  if (source.end_of_turn.data() == nullptr) return source;
  if (settings.image.block != kImageMark) {
    source.jinja = with_media(std::move(source.jinja), kImageMark, settings.image.block);
  }
  if (!settings.video.block.empty() && settings.video.block != kVideoMark) {
    source.jinja = with_media(std::move(source.jinja), kVideoMark, settings.video.block);
  }
  return source;
}

}  // namespace

struct ChatTemplate::Impl {
  Impl(TemplateSource source_, TemplateSettings settings_, const Tokenizer& tokenizer)
      : source(of_family(std::move(source_), settings_)),
        settings(std::move(settings_)),
        jinja(jinja::Template::parse(source.jinja, source.name)),
        habits(habits_of(jinja, source, settings, tokenizer)) {}

  TemplateSource source;
  TemplateSettings settings;
  jinja::Template jinja;
  TemplateHabits habits;
};

namespace {

/// Finds what is an answer and what a medium in a rendered text.
class Reading {
 public:
  Reading(jinja::Rendering rendering, const TemplateHabits& habits, const TemplateSettings& settings)
      : rendering_(std::move(rendering)), habits_(habits), settings_(settings) {}

  RenderedChat chat(std::span<const Turn> turns, bool ends_with_answer) {
    RenderedChat chat;
    const std::vector<size_t> visible = visible_of_turns(turns.size());
    bool has_answer = false, has_end = false;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const std::string words = words_of(turn);
      if (!habits_.end_of_turn.empty() && words.find(habits_.end_of_turn) != std::string::npos) {
        note("text that spells the end-of-turn token, which ends the turn there", turn, chat.notices);
      }
      if (turn.role != Role::kAssistant) {
        if (visible[i] < num_visible(words)) note_left_out(turn, chat.notices);
        continue;
      }
      const bool is_last = ends_with_answer && i + 1 == turns.size();
      refuse_if_repeated(static_cast<int>(i), turn.text);
      const AnswerPlace place = find_answer(rendering_, static_cast<int>(i), words, habits_, settings_);
      if (!place.is_complete) note_left_out(turn, chat.notices);
      if (place.spans.empty()) continue;  // the template leaves this turn out
      has_answer = true;
      for (const Span& span : with_ends(place.spans, is_last)) add(chat.answers, span);
      has_end = has_end || ends_a_turn(chat.answers.back());
    }
    if (has_answer && !has_end) {
      chat.notices.push_back({"answers that no end-of-turn token follows", excerpt(turns.back().text)});
    }
    chat.media = media();
    add_generated(chat);
    chat.text = std::move(rendering_.text);
    return chat;
  }

 private:
  /// Without marks of media.
  static std::string words_of(const Turn& turn) {
    std::string words;
    for (const MediaPiece& piece : cut_at_marks(turn)) words += piece.text;
    return words;
  }

  static void note_left_out(const Turn& turn, std::vector<io::Notice>& notices) {
    const char* const kind = turn.role == Role::kAssistant ? "text of an answer that the chat template leaves out"
                             : turn.role == Role::kSystem  ? "system text that the chat template leaves out"
                                                           : "text of a question that the chat template leaves out";
    note(kind, turn, notices);
  }

  static void note(const char* kind, const Turn& turn, std::vector<io::Notice>& notices) {
    if (std::ranges::count(notices, kind, &io::Notice::kind) == 0) notices.push_back({kind, excerpt(turn.text)});
  }

  /// How many visible characters of each turn's text are written.
  std::vector<size_t> visible_of_turns(size_t turns) const {
    std::vector<size_t> visible(turns, 0);
    for (const jinja::Run& run : rendering_.runs) {
      if (static_cast<size_t>(run.origin) >= turns) continue;
      visible[static_cast<size_t>(run.origin)] +=
          num_visible(std::string_view(rendering_.text).substr(run.begin, run.end - run.begin));
    }
    return visible;
  }

  /// A template may do so in conversations of other kinds than those that it was tried with.
  void refuse_if_repeated(int turn, const std::string& text) const {
    if (!is_repeated(rendering_, turn, text)) return;
    throw data_error(
        "turn {}: the chat template writes this answer more than once, so it cannot be known which is to be "
        "learnt",
        turn + 1);
  }

  /// An answer's spans, with what the model has to write before and after its text.
  std::vector<Span> with_ends(std::vector<Span> spans, bool is_last) {
    spans.front().begin -= length_of_beginning(spans.front().begin);
    size_t& end = spans.back().end;
    const size_t ending = length_of_ending(end);
    if (ending > 0) {
      end += ending;
    } else if (is_last) {
      end = end_of_generated_words(end);
      if (const size_t later = length_of_later_ending(end); later > 0) {
        end += later;
      } else if (!std::string_view(rendering_.text).substr(0, end).ends_with(habits_.end_of_turn)) {
        put_end_of_turn(end);
        end += habits_.end_of_turn.size();
      }
    }
    return spans;
  }

  /// As length_of_ending, also where the template writes more before the end of turn than it did for others.
  size_t length_of_later_ending(size_t place) const {
    if (const size_t length = length_of_ending(place); length > 0) return length;
    const size_t found = rendering_.text.find(habits_.end_of_turn, place);
    if (found == std::string::npos) return 0;
    const size_t end = found + habits_.end_of_turn.size();
    const bool is_own = std::ranges::none_of(
        rendering_.runs, [&](const jinja::Run& run) { return !run.empty() && run.begin < end && run.end > place; });
    return is_own ? end - place : 0;
  }

  /// Where the `generation` block ends that an answer up to `place` is of, but for white space at its end, whose place
  /// an end of turn takes; `place` without one.
  size_t end_of_generated_words(size_t place) const {
    for (const jinja::Generated& part : rendering_.generated) {
      if (part.begin >= place || place >= part.end) continue;
      const std::string_view rest = std::string_view(rendering_.text).substr(place, part.end - place);
      return place + rest.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0
    }
    return place;
  }

  bool ends_a_turn(const Span& answer) const {
    const std::string_view text = std::string_view(rendering_.text).substr(answer.begin, answer.end - answer.begin);
    return text.ends_with(habits_.end_of_turn) ||
           std::ranges::any_of(habits_.endings, [text](const std::string& ending) { return text.ends_with(ending); });
  }

  /// What `generation` blocks write is the model's too. Media are not, and neither is white space at the end of a block
  /// without an end of turn, which takes its place after the last answer.
  void add_generated(RenderedChat& chat) const {
    if (rendering_.generated.empty()) return;
    std::vector<Span> spans = chat.answers;
    for (const jinja::Generated& part : rendering_.generated) {
      size_t begin = part.begin;
      const std::string_view written = std::string_view(rendering_.text).substr(begin, part.end - begin);
      const bool has_end = written.find(habits_.end_of_turn) != std::string_view::npos;
      const size_t end = has_end ? part.end : begin + written.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 is 0
      for (const MediumPlace& medium : chat.media) {
        if (medium.span.end <= begin || medium.span.begin >= end) continue;
        if (begin < medium.span.begin) spans.push_back({begin, medium.span.begin});
        begin = medium.span.end;
      }
      if (begin < end) spans.push_back({begin, end});
    }
    std::ranges::sort(spans, {}, &Span::begin);
    chat.answers.clear();
    for (const Span& span : spans) add(chat.answers, span);
  }

  /// Of the white space directly before `place` that is the model's to write.
  size_t length_of_beginning(size_t place) const {
    const std::string& beginning = habits_.answer_begin;
    if (!std::string_view(rendering_.text).substr(0, place).ends_with(beginning)) return 0;
    const bool is_own = beginning.empty() || !is_of_a_turn(place - beginning.size());
    return is_own ? beginning.size() : 0;
  }

  /// Of what stands at `place`, up to the end of turn; 0: there is none.
  size_t length_of_ending(size_t place) const {
    const std::string_view behind = std::string_view(rendering_.text).substr(place);
    const auto is_written = [&](std::string_view ending) {
      return behind.starts_with(ending) && !is_of_a_turn(place) && !is_of_a_turn(place + ending.size() - 1);
    };
    for (const std::string& ending : habits_.endings) {
      if (is_written(ending)) return ending.size();
    }
    const size_t white_space = white_space_at(behind);
    const bool is_there = behind.substr(white_space).starts_with(habits_.end_of_turn) &&
                          is_written(behind.substr(0, white_space + habits_.end_of_turn.size()));
    return is_there ? white_space + habits_.end_of_turn.size() : 0;
  }

  void put_end_of_turn(size_t place) {
    const size_t white_space = white_space_at(std::string_view(rendering_.text).substr(place));
    // White space at the very end stands for nothing that follows.
    const size_t replaced = place + white_space == rendering_.text.size() ? white_space : 0;
    rendering_.text.replace(place, replaced, habits_.end_of_turn);
    std::erase_if(rendering_.generated, [place](const jinja::Generated& part) { return part.begin >= place; });
    for (jinja::Generated& part : rendering_.generated) part.end = std::min(part.end, place);
  }

  /// Whether the character at `place` comes from a turn's text.
  bool is_of_a_turn(size_t place) const {
    return std::ranges::any_of(rendering_.runs,
                               [place](const jinja::Run& run) { return run.begin <= place && place < run.end; });
  }

  static void add(std::vector<Span>& spans, const Span& span) {
    if (!spans.empty() && spans.back().end >= span.begin) {
      spans.back().end = std::max(spans.back().end, span.end);
    } else {
      spans.push_back(span);
    }
  }

  /// Where a turn's text is one string, its marks are in it; else only the template itself writes media.
  std::vector<MediumPlace> media() const {
    std::vector<MediumPlace> places;
    for (size_t at = 0;;) {
      const size_t image = find(settings_.image.token, at), video = find(settings_.video.token, at);
      const size_t begin = std::min(image, video);
      if (begin == std::string::npos) return places;
      const bool is_video = video < image;
      const size_t end = begin + (is_video ? settings_.video : settings_.image).token.size();
      if (!habits_.form.blocks_of_user || !is_of_a_turn(begin)) places.push_back({{begin, end}, is_video});
      at = end;
    }
  }

  size_t find(const std::string& token, size_t from) const {
    return token.empty() ? std::string::npos : rendering_.text.find(token, from);
  }

  jinja::Rendering rendering_;
  const TemplateHabits& habits_;
  const TemplateSettings& settings_;
};

}  // namespace

ChatTemplate::ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer)
    : impl_(std::make_shared<const Impl>(std::move(source), std::move(settings), tokenizer)) {}

const TemplateSource& ChatTemplate::source() const {
  return impl_->source;
}
std::string_view ChatTemplate::end_of_turn() const {
  return impl_->habits.end_of_turn;
}
bool ChatTemplate::lacks_end_of_turn() const {
  return impl_->habits.lacks_end_of_turn;
}
bool ChatTemplate::writes_start() const {
  return impl_->habits.writes_start;
}

std::string ChatTemplate::description() const {
  std::string text =
      fmt::format("chat template {}{}; ", impl_->source.name,
                  impl_->source.is_in_checkpoint ? ", the checkpoint's own"
                                                 : ", which saved checkpoints carry as chat_template.jinja");
  text += impl_->habits.lacks_end_of_turn
              ? fmt::format("it writes nothing after a last answer, so {} is put there", impl_->habits.end_of_turn)
              : fmt::format("an answer ends with {}", impl_->habits.end_of_turn);
  for (const std::string& note : impl_->habits.notes) text += "; " + note;
  return text;
}

RenderedChat ChatTemplate::render(std::span<const Turn> turns, bool add_generation_prompt) const {
  if (turns.empty()) throw data_error("A conversation has no turns; give it a question and an answer, or drop it");
  jinja::Rendering rendering =
      render_messages(impl_->jinja, turns, impl_->habits.form, impl_->settings, add_generation_prompt);
  return Reading(std::move(rendering), impl_->habits, impl_->settings)
      .chat(turns, /*ends_with_answer=*/!add_generation_prompt);
}

}  // namespace vlmtrain::text
