#include "tutti/nn/sample_context.h"

namespace tutti::nn {

namespace {
thread_local SampleContext* innermost = nullptr;
}

SampleContext::SampleContext(SamplePlace place) noexcept : place_(place), outer_(innermost) {
  innermost = this;
}

SampleContext::~SampleContext() { innermost = outer_; }

SampleContext* SampleContext::current() noexcept { return innermost; }

}  // namespace tutti::nn
