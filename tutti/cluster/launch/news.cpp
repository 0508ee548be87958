#include "tutti/cluster/launch/detail/news.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::detail {

void News::add(Notice message, std::vector<FileDescriptor> descriptors) {
  items_.push_back({std::move(message), std::move(descriptors)});
}

bool News::tell(int worker, DescriptorChannel& channel) {
  size_t& told = told_[static_cast<size_t>(worker)];
  while (told < items_.size()) {
    const Item& item = items_[told];
    size_t end = told + 1;
    Notice message = item.message;
    if (message.kind == Notice::Kind::joined) {
      std::vector<int> workers;
      for (end = told; end < items_.size(); ++end) {
        if (items_[end].message.kind != Notice::Kind::joined) break;
        workers.push_back(items_[end].message.worker);
      }
      message = joined_notice(workers);
    }
    if (message.kind == Notice::Kind::joined || message.worker != worker) {
      std::vector<int> numbers;
      for (const FileDescriptor& fd : item.descriptors) numbers.push_back(fd.get());
      try {
        channel.send(encode(message), numbers, Deadline(Millis{0}));
      } catch (const Timeout&) {
        return false;
      }
    }
    told = end;
  }
  let_go();
  return true;
}

void News::leave(int worker) {
  told_[static_cast<size_t>(worker)] = SIZE_MAX;
  let_go();
}

void News::let_go() {
  const size_t all_told = std::min(items_.size(), *std::min_element(told_.begin(), told_.end()));
  for (; kept_from_ < all_told; ++kept_from_) items_[kept_from_].descriptors.clear();
}

}  // namespace tutti::detail
