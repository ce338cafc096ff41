#include "framework/measure/nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace penstock::measure {
namespace {

class Ranges final : public trace::Listener {
 public:
  Ranges() : outer_(trace::listener()) { trace::set_listener(this); }
  ~Ranges() override {
    if (trace::listener() == this) {
      trace::set_listener(outer_);
    }
  }
  void begin(const char* name, trace::Phase phase) override {
    if (outer_ != nullptr) {
      outer_->begin(name, phase);
    }
    nvtxRangePushA(trace::name_of(phase));
    nvtxRangePushA(name);
  }
  void end(const char* name, trace::Phase phase) override {
    nvtxRangePop();
    nvtxRangePop();
    if (outer_ != nullptr) {
      outer_->end(name, phase);
    }
  }

 private:
  trace::Listener* outer_;
};

}  // namespace

bool nvtx_built() {
  return true;
}
std::unique_ptr<trace::Listener> nvtx_listener() {
  return std::make_unique<Ranges>();
}

}  // namespace penstock::measure

#else

namespace penstock::measure {

bool nvtx_built() {
  return false;
}
std::unique_ptr<trace::Listener> nvtx_listener() {
  return nullptr;
}

}  // namespace penstock::measure

#endif
