// SPDX-License-Identifier: Apache-2.0
// Not every browser starts a worker from a folder. There the worker of the search runs in a hidden frame instead;
// it looks for the name IFrameWorker to know that.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.inside = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = new URL(url, location.href);
          script.addEventListener("load", () => resolve(inside));
          inside.document.body.append(script);
        });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
