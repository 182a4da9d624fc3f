#include "train/shown_samples.h"

#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

report::SamplePreview render_sample(const io::Records& records, const models::Processor& processor, int64_t index) {
  const io::Record record = records.at(index);
  report::SamplePreview rendered{.index = index, .id = record.id, .task = record.task};
  try {
    const data::Sample sample = data::make_sample(processor, record, index);
    rendered.shape = data::get_shape(sample);
    rendered.shrunk = sample.shrunk;
    rendered.media_previews = processor.preview_media(record, sample);
    rendered.chat = processor.render(record, /*as_prompt=*/false);
    std::vector<int64_t> labels;
    labels.reserve(static_cast<size_t>(sample.label_tokens()));
    for (size_t position = 0; position < sample.token_ids.size(); ++position) {
      if (sample.is_label[position] != 0) labels.push_back(sample.token_ids[position]);
    }
    rendered.label_text = processor.tokenizer().decode(labels, /*skip_special_tokens=*/false);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    rendered.problem = error.what();
  }
  return rendered;
}

}  // namespace vlmtrain::train
