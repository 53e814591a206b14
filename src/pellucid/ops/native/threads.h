// Threads of our own, for a compiler without OpenMP (Apple's).
//
// The one idea: a helper is never needed. The calling thread takes every piece that no helper takes, so it waits for those helpers alone
// that have begun its work. So two calls at a time share the helpers, and neither waits for the other.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

struct Helpers {
  struct Job {
    const std::function<void()>& work;
    int wanted, inside = 0;  // helpers that may still begin, and that have begun and not ended
  };
  std::mutex lock;
  std::condition_variable more, ended;
  std::deque<Job*> jobs;
  int count = 0;

  void help() {
    std::unique_lock<std::mutex> held(lock);
    for (;;) {
      more.wait(held, [&] { return !jobs.empty(); });
      Job* const job = jobs.front();
      if (--job->wanted == 0) jobs.pop_front();
      job->inside++;
      held.unlock();
      job->work();
      held.lock();
      if (--job->inside == 0) ended.notify_all();
    }
  }
  void run(const std::function<void()>& work, int threads) {
    Job job{work, threads - 1};
    {
      std::lock_guard<std::mutex> held(lock);
      for (; count < threads - 1; count++) std::thread([this] { help(); }).detach();
      jobs.push_back(&job);
    }
    more.notify_all();
    work();
    std::unique_lock<std::mutex> held(lock);
    for (auto at = jobs.begin(); at != jobs.end(); ++at)
      if (*at == &job) {
        jobs.erase(at);
        break;
      }
    ended.wait(held, [&] { return job.inside == 0; });
  }
};
// Run `work` on this thread and up to threads - 1 others at once.
static inline void together(const std::function<void()>& work, int threads) {
  static Helpers* const helpers = new Helpers;  // for the life of the process: its threads wait in it
  helpers->run(work, threads);
}
