#include "train/shown_samples.h"

#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

report::ShownSample shown_sample(const io::Records& records, const models::Processor& processor, int64_t index) {
  const io::Record record = records.at(index);
  report::ShownSample shown{.index = index, .id = record.id, .task = record.task};
  try {
    const data::Sample sample = data::make_sample(processor, record, index);
    shown.shape = data::shape_of(sample);
    shown.shrunk = sample.shrunk;
    shown.pictures = processor.seen(record, sample);
    shown.chat = processor.render(record, /*as_prompt=*/false);
    std::vector<int64_t> labels;
    labels.reserve(static_cast<size_t>(sample.label_tokens()));
    for (size_t place = 0; place < sample.token_ids.size(); ++place) {
      if (sample.is_label[place] != 0) labels.push_back(sample.token_ids[place]);
    }
    shown.learnt = processor.tokenizer().decode(labels, /*skip_special_tokens=*/false);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    shown.problem = error.what();
  }
  return shown;
}

}  // namespace vlmtrain::train
