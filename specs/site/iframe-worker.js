// Search in pages that are opened from a folder. A browser starts no worker from a file; a hidden frame does its work instead.
// On a server nothing is changed.
if (location.protocol === "file:") {
  const load = (inside, url) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script")
      script.onload = resolve
      script.onerror = reject
      script.src = url
      inside.document.head.append(script)
    })

  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => Promise.all(urls.map((each) => load(this.inside, each)))
      this.loaded = load(this.inside, url)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
}
